// Classic consumer groups of the Java client with each of its assignors.
//
// Groups BOOTSTRAP TOPIC_PREFIX: topics PREFIX-<assignor> have 4 partitions and 40 records each.
// Prints one line a finding: name, tab, value.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class Groups {
    static final Map<String, String> ASSIGNORS = Map.of(
        "range", "org.apache.kafka.clients.consumer.RangeAssignor",
        "roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor",
        "sticky", "org.apache.kafka.clients.consumer.StickyAssignor",
        "cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");

    // One consumer in a thread of its own.
    static class Member extends Thread implements ConsumerRebalanceListener {
        final KafkaConsumer<String, String> consumer;
        final String topic;
        final Set<Integer> owned = ConcurrentHashMap.newKeySet();
        final List<String> values;
        final AtomicInteger revoked = new AtomicInteger();
        volatile boolean leaving = false;
        volatile boolean committed = false;

        Member(String bootstrap, String group, String topic, String assignor, String instance, List<String> values) {
            Map<String, Object> settings = new HashMap<>(Map.of(
                "bootstrap.servers", bootstrap,
                "group.id", group,
                "group.protocol", "classic",
                "auto.offset.reset", "earliest",
                "heartbeat.interval.ms", 200,
                "session.timeout.ms", 10_000,
                "partition.assignment.strategy", assignor));
            if (instance != null) {
                settings.put("group.instance.id", instance);
            }
            this.topic = topic;
            this.values = values;
            consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
            start();
        }

        @Override
        public void run() {
            try (consumer) {
                consumer.subscribe(List.of(topic), this);
                while (!leaving) {
                    for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(50))) {
                        values.add(record.value());
                    }
                }
                Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
                for (TopicPartition partition : consumer.assignment()) {
                    positions.put(partition, new OffsetAndMetadata(consumer.position(partition), "by java"));
                }
                consumer.commitSync(positions);
                committed = true;
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            partitions.forEach(partition -> owned.add(partition.partition()));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            revoked.addAndGet(partitions.size());
            partitions.forEach(partition -> owned.remove(partition.partition()));
        }

        void leave() throws InterruptedException {
            leaving = true;
            join();
        }
    }

    public static void main(String[] arguments) throws Exception {
        for (String name : new TreeSet<>(ASSIGNORS.keySet())) {
            share(arguments[0], arguments[1] + "-" + name, name);
        }
        staticMember(arguments[0], arguments[1] + "-range");
    }

    static void share(String bootstrap, String topic, String name) throws Exception {
        List<String> values = java.util.Collections.synchronizedList(new ArrayList<>());
        String group = topic + "-group";
        Member first = new Member(bootstrap, group, topic, ASSIGNORS.get(name), null, values);
        until(() -> first.owned.size() == 4);
        Member second = new Member(bootstrap, group, topic, ASSIGNORS.get(name), null, values);
        boolean shared = until(() -> first.owned.size() == 2 && second.owned.size() == 2);
        Set<Integer> both = new HashSet<>(first.owned);
        both.addAll(second.owned);
        System.out.println("shared " + name + "\t" + (shared && both.size() == 4));
        System.out.println("revoked " + name + "\t" + first.revoked.get());
        until(() -> values.size() >= 40);
        System.out.println("read " + name + "\t" + values.size() + " " + new HashSet<>(values).size());
        second.leave();
        System.out.println("taken over " + name + "\t" + until(() -> first.owned.size() == 4));
        first.leave();
        System.out.println("committed " + name + "\t" + first.committed);
    }

    static void staticMember(String bootstrap, String topic) throws Exception {
        List<String> values = java.util.Collections.synchronizedList(new ArrayList<>());
        String group = topic + "-static";
        String assignor = ASSIGNORS.get("range");
        Member one = new Member(bootstrap, group, topic, assignor, "one", values);
        Member two = new Member(bootstrap, group, topic, assignor, "two", values);
        until(() -> one.owned.size() == 2 && two.owned.size() == 2);
        int revokedBefore = one.revoked.get();
        Set<Integer> ownedBefore = Set.copyOf(two.owned);
        two.leave();
        Member again = new Member(bootstrap, group, topic, assignor, "two", values);
        System.out.println("static member back\t" + until(() -> again.owned.equals(ownedBefore)));
        System.out.println("static other disturbed\t" + (one.revoked.get() - revokedBefore));
        one.leave();
        again.leave();
    }

    static boolean until(BooleanSupplier condition) throws InterruptedException {
        long deadline = System.currentTimeMillis() + 20_000;
        while (!condition.getAsBoolean()) {
            if (System.currentTimeMillis() > deadline) {
                return false;
            }
            Thread.sleep(10);
        }
        return true;
    }
}
