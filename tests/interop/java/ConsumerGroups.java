// Groups whose broker assigns, with the Java client: both assignors, patterns, static members, classic members.
//
// ConsumerGroups BOOTSTRAP TOPIC: the topic has 6 partitions and 60 records; topics TOPIC-x and TOPIC-y one each.
// Prints one line a finding: name, tab, value.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class ConsumerGroups {
    // One consumer in a thread of its own.
    static class Member extends Thread implements ConsumerRebalanceListener {
        final KafkaConsumer<String, String> consumer;
        final String topic;
        final String pattern;
        final Set<TopicPartition> owned = ConcurrentHashMap.newKeySet();
        final List<String> values;
        final AtomicInteger revoked = new AtomicInteger();
        final AtomicInteger lost = new AtomicInteger();
        volatile boolean leaving = false;
        volatile boolean committed = false;
        volatile Exception failure = null;

        Member(String group, String topic, String pattern, List<String> values, Map<String, Object> more) {
            Map<String, Object> settings = new HashMap<>(Map.of(
                "bootstrap.servers", bootstrap,
                "group.id", group,
                "group.protocol", "consumer",
                "auto.offset.reset", "earliest"));
            settings.putAll(more);
            this.topic = topic;
            this.pattern = pattern;
            this.values = values;
            consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
            start();
        }

        @Override
        public void run() {
            try (consumer) {
                if (pattern != null) {
                    consumer.subscribe(new SubscriptionPattern(pattern), this);
                } else {
                    consumer.subscribe(List.of(topic), this);
                }
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
            } catch (Exception exception) {
                failure = exception;
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            owned.addAll(partitions);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            revoked.addAndGet(partitions.size());
            owned.removeAll(partitions);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            lost.addAndGet(partitions.size());
            owned.removeAll(partitions);
        }

        void leave() throws InterruptedException {
            leaving = true;
            join();
        }
    }

    static String bootstrap;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        String topic = arguments[1];
        share(topic, "uniform");
        share(topic, "range");
        pattern(topic);
        staticMember(topic);
        migrate(topic, "range", "org.apache.kafka.clients.consumer.RangeAssignor");
        migrate(topic, "cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
    }

    static List<String> values() {
        return java.util.Collections.synchronizedList(new ArrayList<>());
    }

    static ConsumerGroupDescription described(String group) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            return admin.describeConsumerGroups(List.of(group)).describedGroups().get(group).get();
        }
    }

    static void share(String topic, String assignor) throws Exception {
        List<String> values = values();
        String group = topic + "-" + assignor;
        Map<String, Object> more = Map.of("group.remote.assignor", assignor);
        Member first = new Member(group, topic, null, values, more);
        until(() -> first.owned.size() == 6);
        Member second = new Member(group, topic, null, values, more);
        boolean shared = until(() -> first.owned.size() == 3 && second.owned.size() == 3);
        Set<TopicPartition> both = new HashSet<>(first.owned);
        both.addAll(second.owned);
        System.out.println("shared " + assignor + "\t" + (shared && both.size() == 6));
        System.out.println("revoked " + assignor + "\t" + first.revoked.get());
        until(() -> values.size() >= 60);
        System.out.println("read " + assignor + "\t" + values.size() + " " + new HashSet<>(values).size());
        ConsumerGroupDescription group_ = described(group);
        System.out.println("described " + assignor + "\t" + group_.type() + " " + group_.groupState() + " "
            + group_.partitionAssignor() + " " + group_.members().size());
        second.leave();
        System.out.println("taken over " + assignor + "\t" + until(() -> first.owned.size() == 6));
        System.out.println("revoked in the end " + assignor + "\t" + first.revoked.get());
        first.leave();
        System.out.println("committed " + assignor + "\t" + (first.committed && second.committed));
    }

    static void pattern(String topic) throws Exception {
        List<String> values = values();
        Member member = new Member(topic + "-pattern", null, topic + "-[xy]", values, Map.of());
        System.out.println("pattern\t" + until(() -> member.owned.size() == 2));
        member.leave();
        Member broken = new Member(topic + "-broken", null, "(", values, Map.of());
        until(() -> broken.failure != null);
        System.out.println("broken pattern\t" + broken.failure.getClass().getSimpleName());
    }

    static void staticMember(String topic) throws Exception {
        List<String> values = values();
        String group = topic + "-static";
        Member one = new Member(group, topic, null, values, Map.of("group.instance.id", "one"));
        Member two = new Member(group, topic, null, values, Map.of("group.instance.id", "two"));
        until(() -> one.owned.size() == 3 && two.owned.size() == 3);
        int revokedBefore = one.revoked.get();
        Set<TopicPartition> ownedBefore = Set.copyOf(two.owned);
        two.leave();
        Member again = new Member(group, topic, null, values, Map.of("group.instance.id", "two"));
        System.out.println("static member back\t" + until(() -> again.owned.equals(ownedBefore)));
        System.out.println("static other disturbed\t" + (one.revoked.get() - revokedBefore));
        Member rival = new Member(group, topic, null, values, Map.of("group.instance.id", "two"));
        until(() -> rival.failure != null);
        System.out.println("static rival\t" + rival.failure.getClass().getSimpleName());
        one.leave();
        again.leave();
    }

    static void migrate(String topic, String name, String strategy) throws Exception {
        List<String> values = values();
        String group = topic + "-migrated-" + name;
        Map<String, Object> classic = Map.of(
            "group.protocol", "classic",
            "heartbeat.interval.ms", 200,
            "partition.assignment.strategy", strategy);
        Member old = new Member(group, topic, null, values, classic);
        until(() -> old.owned.size() == 6);
        System.out.println("before " + name + "\t" + described(group).type());
        Member fresh = new Member(group, topic, null, values, Map.of());
        boolean shared = until(() -> old.owned.size() == 3 && fresh.owned.size() == 3);
        System.out.println("mixed " + name + "\t" + shared + " " + described(group).type());
        System.out.println("upgraded members " + name + "\t" + described(group).members().stream()
            .map(member -> member.upgraded().map(String::valueOf).orElse("?")).sorted().toList());
        until(() -> new HashSet<>(values).size() >= 60);
        System.out.println("read by both " + name + "\t" + new HashSet<>(values).size());
        fresh.leave();
        System.out.println("back " + name + "\t" + until(() -> old.owned.size() == 6) + " "
            + described(group).type());
        System.out.println("lost " + name + "\t" + fresh.lost.get());
        old.leave();
        System.out.println("committed by both " + name + "\t" + (old.committed && fresh.committed));
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
