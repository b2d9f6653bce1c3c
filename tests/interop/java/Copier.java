// One worker that copies a topic to another, each record once: reads, writes and commits its offsets in transactions.
//
// Copier BOOTSTRAP SOURCE TARGET GROUP TRANSACTIONAL_ID PROTOCOL RECORDS_MAX
// Says where it is, a word a line (ready, sending, sent, offsets, committed, aborted, fenced), and waits there for a line
// on its standard input, so that a test can end it in that place. The line "free" lets it run without asking.

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Copier {
    static final BufferedReader ORDERS = new BufferedReader(new InputStreamReader(System.in));
    static boolean free = false;

    public static void main(String[] arguments) throws IOException {
        while (true) {
            try {
                run(arguments);
            } catch (ProducerFencedException | InvalidProducerEpochException error) {
                say("fenced");
            }
        }
    }

    static void run(String[] arguments) throws IOException {
        String bootstrap = arguments[0];
        Map<String, Object> reading = new HashMap<>(Map.of(
            "bootstrap.servers", bootstrap,
            "group.id", arguments[3],
            "group.protocol", arguments[5],
            "isolation.level", "read_committed",
            "auto.offset.reset", "earliest",
            "enable.auto.commit", false,
            "max.poll.records", Integer.parseInt(arguments[6])));
        if (arguments[5].equals("classic")) {
            reading.put("heartbeat.interval.ms", 300);
            reading.put("session.timeout.ms", 3000);
        }
        Map<String, Object> writing = Map.of(
            "bootstrap.servers", bootstrap,
            "transactional.id", arguments[4],
            "transaction.timeout.ms", 8_000);
        try (KafkaConsumer<String, String> consumer =
                 new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
             KafkaProducer<String, String> producer =
                 new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            say("ready");
            consumer.subscribe(List.of(arguments[1]));
            while (true) {
                copy(consumer, producer, arguments[2]);
            }
        }
    }

    static void copy(KafkaConsumer<String, String> consumer, KafkaProducer<String, String> producer, String target)
            throws IOException {
        ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
        if (records.isEmpty()) {
            return;
        }
        producer.beginTransaction();
        try {
            say("sending");
            Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
            for (ConsumerRecord<String, String> record : records) {
                producer.send(new ProducerRecord<>(target, record.key(), record.value()));
                next.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
            }
            producer.flush();
            say("sent");
            producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
            say("offsets");
            producer.commitTransaction();
            say("committed");
        } catch (ProducerFencedException | InvalidProducerEpochException error) {
            throw error;
        } catch (KafkaException error) {
            // A rebalance, or a broker that went away: nothing of this transaction counts, its input is read again.
            producer.abortTransaction();
            Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
            for (TopicPartition partition : consumer.assignment()) {
                OffsetAndMetadata position = committed.get(partition);
                if (position == null) {
                    consumer.seekToBeginning(List.of(partition));
                } else {
                    consumer.seek(partition, position.offset());
                }
            }
            say("aborted " + error.getClass().getSimpleName());
        }
    }

    static void say(String word) throws IOException {
        System.out.println(word);
        System.out.flush();
        if (!free) {
            String order = ORDERS.readLine();
            if (order == null) {
                System.exit(0);
            }
            free = order.equals("free");
        }
    }
}
