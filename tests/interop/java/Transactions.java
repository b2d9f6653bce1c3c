// Transactions of the Java client: several partitions, both isolation levels, offsets, fencing, the admin.
//
// Transactions BOOTSTRAP PREFIX: topics PREFIX-records (3 partitions), PREFIX-source (1 partition, 10 records), PREFIX-admin.
// Prints one line a finding: name, tab, value.

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Transactions {
    static final Duration PATIENCE = Duration.ofSeconds(20);
    static String bootstrap;
    static Admin admin;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        String prefix = arguments[1];
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        records(prefix + "-records", prefix + "-writer");
        fencing(prefix + "-records", prefix + "-fenced");
        offsets(prefix + "-source", prefix + "-offsets");
        timeout(prefix + "-admin", prefix + "-slow");
        administration(prefix + "-admin", prefix + "-described");
        admin.close();
    }

    // Ten transactions over three partitions, every third of them aborted.
    static void records(String topic, String id) throws Exception {
        try (KafkaProducer<String, String> producer = producer(id, 60_000)) {
            producer.initTransactions();
            int before = described(id).producerEpoch();
            for (int number = 0; number < 10; number++) {
                producer.beginTransaction();
                for (int place = 0; place < 30; place++) {
                    producer.send(new ProducerRecord<>(topic, place % 3, null, number + "/" + place));
                }
                if (number % 3 == 2) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
            int after = described(id).producerEpoch();
            found("epoch raised by each transaction", after - before);
            // A transaction without records, committed and aborted: nothing has to be ended.
            producer.beginTransaction();
            producer.commitTransaction();
            producer.beginTransaction();
            producer.abortTransaction();
            producer.beginTransaction();
            Future<RecordMetadata> open = producer.send(new ProducerRecord<>(topic, 0, null, "open"));
            producer.flush();
            open.get();
            for (String isolation : List.of("read_committed", "read_uncommitted")) {
                for (int partition = 0; partition < 3; partition++) {
                    found(isolation + " " + partition, String.join(" ", read(topic, partition, isolation)));
                }
            }
            producer.commitTransaction();
            found("last committed", read(topic, 0, "read_committed").contains("open"));
        }
    }

    // A second producer with the same id takes over while the first has a transaction open.
    static void fencing(String topic, String id) throws Exception {
        KafkaProducer<String, String> first = producer(id, 60_000);
        first.initTransactions();
        first.beginTransaction();
        first.send(new ProducerRecord<>(topic, 1, null, "by the first")).get();
        try (KafkaProducer<String, String> second = producer(id, 60_000)) {
            second.initTransactions();
            second.beginTransaction();
            second.send(new ProducerRecord<>(topic, 1, null, "by the second")).get();
            found("fenced commit", failure(first::commitTransaction));
            found("fenced begin", failure(() -> {
                first.beginTransaction();
                first.send(new ProducerRecord<>(topic, 1, null, "late")).get();
            }));
            first.close(Duration.ZERO);
            second.commitTransaction();
        }
        List<String> values = read(topic, 1, "read_committed");
        found("fenced record is gone", !values.contains("by the first") && !values.contains("late"));
        found("successor's record is there", values.contains("by the second"));
    }

    // Offsets in transactions: what is aborted is read again, what is committed is not.
    static void offsets(String topic, String id) throws Exception {
        String group = id + "-group";
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer = producer(id, 60_000)) {
            producer.initTransactions();
            List<String> ends = new ArrayList<>();
            for (boolean commit : new boolean[] {true, false, true}) {
                try (KafkaConsumer<String, String> consumer = consumer(group, "read_committed", 3)) {
                    consumer.subscribe(List.of(topic));
                    List<ConsumerRecord<String, String>> polled = new ArrayList<>();
                    long deadline = System.currentTimeMillis() + PATIENCE.toMillis();
                    while (polled.isEmpty() && System.currentTimeMillis() < deadline) {
                        consumer.poll(Duration.ofMillis(100)).forEach(polled::add);
                    }
                    producer.beginTransaction();
                    OffsetAndMetadata next = new OffsetAndMetadata(polled.get(polled.size() - 1).offset() + 1);
                    ConsumerGroupMetadata metadata = consumer.groupMetadata();
                    producer.sendOffsetsToTransaction(Map.of(partition, next), metadata);
                    if (commit) {
                        producer.commitTransaction();
                    } else {
                        producer.abortTransaction();
                    }
                    ends.add(polled.get(0).offset() + "-" + next.offset());
                }
            }
            found("offsets read", String.join(" ", ends));
            Map<TopicPartition, OffsetAndMetadata> committed =
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
            found("offset committed", committed.get(partition).offset());
            producer.beginTransaction();
            ConsumerGroupMetadata stale = new ConsumerGroupMetadata(group, 7, "nobody", java.util.Optional.empty());
            found("offsets of a stale member", failure(() ->
                producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(9)), stale)));
            producer.abortTransaction();
            producer.beginTransaction();
            producer.commitTransaction();
        }
    }

    // A transaction that takes too long is aborted by the coordinator.
    static void timeout(String topic, String id) throws Exception {
        try (KafkaProducer<String, String> producer = producer(id, 500)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "slow")).get();
            long deadline = System.currentTimeMillis() + PATIENCE.toMillis();
            while (described(id).state() != TransactionState.COMPLETE_ABORT && System.currentTimeMillis() < deadline) {
                Thread.sleep(20);
            }
            found("timed out", described(id).state());
            found("commit after that", failure(producer::commitTransaction));
        }
        try (KafkaProducer<String, String> producer = producer(id, 60_000)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "quick")).get();
            producer.commitTransaction();
        }
        found("read after the timeout", String.join(" ", read(topic, 0, "read_committed")));
        found("a timeout that is too long", failure(() -> {
            try (KafkaProducer<String, String> producer = producer(id + "-long", 900_001)) {
                producer.initTransactions();
            }
        }));
    }

    static void administration(String topic, String id) throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        KafkaProducer<String, String> producer = producer(id, 60_000);
        producer.initTransactions();
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, 0, null, "open")).get();
        TransactionDescription open = described(id);
        found("described", open.state() + " " + open.topicPartitions() + " " + open.transactionTimeoutMs());
        found("described unknown", failure(() -> described(id + "-nobody")));
        ListTransactionsOptions ongoing = new ListTransactionsOptions().filterStates(Set.of(TransactionState.ONGOING));
        found("listed ongoing", admin.listTransactions(ongoing).all().get().stream()
            .map(TransactionListing::transactionalId).anyMatch(id::equals));
        ListTransactionsOptions empty = new ListTransactionsOptions().filterStates(Set.of(TransactionState.EMPTY));
        found("listed empty", admin.listTransactions(empty).all().get().stream()
            .map(TransactionListing::transactionalId).anyMatch(id::equals));
        ListTransactionsOptions named = new ListTransactionsOptions().filterOnTransactionalIdPattern(id + ".*");
        found("listed by pattern", admin.listTransactions(named).all().get().size());
        ProducerState state = admin.describeProducers(List.of(partition)).partitionResult(partition).get()
            .activeProducers().stream().filter(one -> one.producerId() == open.producerId()).findFirst().get();
        found("producer in a transaction", state.currentTransactionStartOffset().isPresent());
        found("abort of one that does not hang", failure(() -> admin.abortTransaction(
            new AbortTransactionSpec(partition, open.producerId(), (short) open.producerEpoch(), 0)).all().get()));
        found("fenced producer", admin.fenceProducers(List.of(id)).producerId(id).get() == open.producerId());
        found("commit after being fenced", failure(producer::commitTransaction));
        producer.close(Duration.ZERO);
        found("described after being fenced", described(id).state());

        KafkaProducer<String, String> another = producer(id, 60_000);
        another.initTransactions();
        another.beginTransaction();
        another.send(new ProducerRecord<>(topic, 0, null, "terminated")).get();
        admin.forceTerminateTransaction(id).result().get();
        found("commit after being terminated", failure(another::commitTransaction));
        another.close(Duration.ZERO);
        found("read in the end", String.join(" ", read(topic, 0, "read_committed")));
    }

    // --- pieces ---

    interface Step {
        void run() throws Exception;
    }

    static String failure(Step step) {
        try {
            step.run();
            return "none";
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        } catch (Exception error) {
            return error.getClass().getSimpleName();
        }
    }

    static TransactionDescription described(String id) throws Exception {
        return admin.describeTransactions(List.of(id)).description(id).get();
    }

    static KafkaProducer<String, String> producer(String id, int timeoutMs) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap, "transactional.id", id, "transaction.timeout.ms", timeoutMs);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(String group, String isolation, int records) {
        Map<String, Object> settings = new HashMap<>(Map.of(
            "bootstrap.servers", bootstrap,
            "isolation.level", isolation,
            "auto.offset.reset", "earliest",
            "enable.auto.commit", false,
            "max.poll.records", records));
        if (group != null) {
            settings.put("group.id", group);
        }
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    // All values up to the end that the isolation level shows.
    static List<String> read(String topic, int number, String isolation) {
        TopicPartition partition = new TopicPartition(topic, number);
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer(null, isolation, 500)) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            long deadline = System.currentTimeMillis() + PATIENCE.toMillis();
            while (consumer.position(partition) < end && System.currentTimeMillis() < deadline) {
                consumer.poll(Duration.ofMillis(100)).forEach(record -> values.add(record.value()));
            }
        }
        return values;
    }

    static void found(String name, Object value) {
        System.out.println(name + "\t" + value);
    }
}
