// The Java admin client through all that a broker of this kind serves.
//
// Administration BOOTSTRAP NAME: NAME is the stem of the topics and groups that it makes and removes.
// Prints one line a finding: name, tab, value.

import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringSerializer;

public class Administration {
    // Times are told relative to this one, so that what is printed is the same in every run.
    static final long START_MS = System.currentTimeMillis() - 1_000_000;
    static Admin admin;

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        String group = arguments[1] + "-group";
        try (Admin client = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin = client;
            topics(topic);
            produce(bootstrap, topic);
            offsets(topic);
            configs(topic);
            cluster(topic);
            groups(group, topic);
            deletion(topic);
        }
    }

    static void say(String name, Object value) {
        System.out.println(name + "\t" + value);
    }

    static void sayRefusal(String name, Callable<?> action) throws Exception {
        try {
            say(name, "taken: " + action.call());
        } catch (ExecutionException refused) {
            say(name, refused.getCause().getClass().getSimpleName());
        }
    }

    static void topics(String topic) throws Exception {
        NewTopic wanted = new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "100000000"));
        var created = admin.createTopics(List.of(wanted));
        created.all().get();
        say("created partitions", created.numPartitions(topic).get());
        say("created replication", created.replicationFactor(topic).get());
        say("created retention", created.config(topic).get().get("retention.ms").value());
        sayRefusal("created twice", () -> admin.createTopics(List.of(wanted)).all().get());
        NewTopic other = new NewTopic(topic + "-never", Optional.empty(), Optional.empty());
        admin.createTopics(List.of(other), new CreateTopicsOptions().validateOnly(true)).all().get();
        say("validated only", admin.listTopics().names().get().contains(topic + "-never"));
        sayRefusal("bad name", () -> admin.createTopics(List.of(new NewTopic("a b", 1, (short) 1))).all().get());
        sayRefusal("three replicas",
            () -> admin.createTopics(List.of(new NewTopic(topic + "-3", 1, (short) 3))).all().get());
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
        TopicDescription description = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        say("described partitions", description.partitions().size());
        say("described leaders", description.partitions().stream().allMatch(p -> p.leader() != null));
        Uuid id = description.topicId();
        say("described by id",
            admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get().get(id).name()
                .equals(topic));
        sayRefusal("described unknown", () -> admin.describeTopics(List.of("no-such")).allTopicNames().get());
    }

    static void produce(String bootstrap, String topic) throws Exception {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(
                Map.of("bootstrap.servers", bootstrap), new StringSerializer(), new StringSerializer())) {
            for (int n = 0; n < 10; n++) {
                // The largest timestamp is that of record 5.
                long timestamp = START_MS + (n == 5 ? 100_000 : n * 1000);
                producer.send(new ProducerRecord<>(topic, 0, timestamp, null, "value " + n)).get();
            }
        }
    }

    static String offset(TopicPartition partition, OffsetSpec spec) throws Exception {
        var found = admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get();
        return found.offset() + "@" + (found.timestamp() < 0 ? found.timestamp() : found.timestamp() - START_MS);
    }

    static void offsets(String topic) throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        say("offset earliest", offset(partition, OffsetSpec.earliest()));
        say("offset latest", offset(partition, OffsetSpec.latest()));
        say("offset of largest time", offset(partition, OffsetSpec.maxTimestamp()));
        say("offset of a time", offset(partition, OffsetSpec.forTimestamp(START_MS + 3500)));
        say("offset of no time", offset(partition, OffsetSpec.forTimestamp(START_MS + 900_000)));
        var deleted = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(4)));
        say("low watermark", deleted.lowWatermarks().get(partition).get().lowWatermark());
        say("offset earliest then", offset(partition, OffsetSpec.earliest()));
        sayRefusal("deleted beyond the end",
            () -> admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(99))).all().get());
        Collection<ProducerState> producers =
            admin.describeProducers(List.of(partition)).partitionResult(partition).get().activeProducers();
        say("producers", producers.size() + " at " + producers.iterator().next().lastSequence());
    }

    static ConfigEntry config(ConfigResource resource, String name) throws Exception {
        Map<ConfigResource, Config> found = admin.describeConfigs(
            List.of(resource), new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true))
            .all().get();
        return found.get(resource).get(name);
    }

    static void configs(String topic) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        ConfigEntry retention = config(resource, "retention.ms");
        say("config set", retention.value() + " " + retention.source() + " " + retention.type());
        say("config documented", retention.documentation() != null && !retention.documentation().isEmpty());
        say("config synonyms", retention.synonyms().stream().map(each -> each.source().toString()).toList());
        ConfigEntry segment = config(resource, "segment.bytes");
        say("config default", segment.value() + " " + segment.source() + " " + segment.isDefault());
        admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", null), AlterConfigOp.OpType.DELETE),
            new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND))))
            .all().get();
        say("config deleted", config(resource, "retention.ms").value());
        say("config appended", config(resource, "cleanup.policy").value());
        sayRefusal("config bad", () -> admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", "x"), AlterConfigOp.OpType.SET)))).all().get());
        String node = admin.describeCluster().nodes().get().iterator().next().idString();
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, node);
        say("config of the broker", config(broker, "log.segment.bytes").value());
    }

    static void cluster(String topic) throws Exception {
        DescribeClusterResult cluster = admin.describeCluster();
        say("nodes", cluster.nodes().get().size());
        say("controller among nodes", cluster.nodes().get().contains(cluster.controller().get()));
        say("cluster id", cluster.clusterId().get().length());
        Integer node = cluster.nodes().get().iterator().next().id();
        Map<String, LogDirDescription> directories =
            admin.describeLogDirs(List.of(node)).allDescriptions().get().get(node);
        long size = directories.values().stream()
            .mapToLong(each -> each.replicaInfos().get(new TopicPartition(topic, 0)).size()).sum();
        say("log size", size > 700 && size < 1500);
        admin.describeFeatures().featureMetadata().get();
        say("features", "described");
    }

    static void groups(String group, String topic) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets = new TreeMap<>(
            (a, b) -> Integer.compare(a.partition(), b.partition()));
        for (int partition = 0; partition < 3; partition++) {
            offsets.put(new TopicPartition(topic, partition),
                new OffsetAndMetadata(partition, Optional.empty(), "note " + partition));
        }
        admin.alterConsumerGroupOffsets(group, offsets).all().get();
        say("group offsets", grouped(group));
        admin.deleteConsumerGroupOffsets(group, Set.of(new TopicPartition(topic, 1))).all().get();
        say("group offsets then", grouped(group));
        ConsumerGroupDescription described = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
        say("group state", described.groupState() + " " + described.members().size());
        Collection<GroupListing> listed = admin.listGroups(ListGroupsOptions.forConsumerGroups()).all().get();
        say("group listed", listed.stream().anyMatch(each -> each.groupId().equals(group)));
        admin.deleteConsumerGroups(List.of(group)).all().get();
        sayRefusal("group deleted twice", () -> admin.deleteConsumerGroups(List.of(group)).all().get());
        sayRefusal("group unknown", () -> admin.describeConsumerGroups(List.of(group)).all().get());
    }

    static String grouped(String group) throws Exception {
        var found = admin.listConsumerGroupOffsets(Map.of(group, new ListConsumerGroupOffsetsSpec()))
            .partitionsToOffsetAndMetadata(group).get();
        Set<String> lines = new TreeSet<>();
        found.forEach((partition, position) ->
            lines.add(partition.partition() + ":" + position.offset() + ":" + position.metadata()));
        return String.join(",", lines);
    }

    static void deletion(String topic) throws Exception {
        Uuid id = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).topicId();
        admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get();
        long deadline = System.currentTimeMillis() + 10_000;
        while (admin.listTopics().names().get().contains(topic) && System.currentTimeMillis() < deadline) {
            Thread.sleep(20);
        }
        say("deleted by id", !admin.listTopics().names().get().contains(topic));
        sayRefusal("deleted twice", () -> admin.deleteTopics(List.of(topic)).all().get());
    }
}
