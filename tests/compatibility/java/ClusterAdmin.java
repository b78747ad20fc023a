// Uses Apache Kafka's admin client on a cluster. Arguments: broker addresses, name of a topic to
// create. Each step prints a line; a rejected request prints the name of its error.

import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.FeatureMetadata;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.QuorumInfo;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;

public class ClusterAdmin {
    static final String SETTING = "log.cleaner.backoff.ms";

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        String topic = arguments[1];
        try (Admin admin = Admin.create(settings)) {
            describe(admin);
            topics(admin, topic);
            settings(admin, topic);
            elections(admin, topic);
            admin.deleteTopics(List.of(topic)).all().get();
            until(() -> !admin.listTopics().names().get().contains(topic));
            say("deleted", "yes");
        }
    }

    static void describe(Admin admin) throws Exception {
        DescribeClusterResult cluster =
            admin.describeCluster(new DescribeClusterOptions().includeFencedBrokers(true));
        say("brokers", ids(cluster.nodes().get()));
        say("fenced", cluster.nodes().get().stream().filter(Node::isFenced).count());
        say("controller", cluster.controller().get().id());
        QuorumInfo quorum = admin.describeMetadataQuorum().quorumInfo().get();
        say("voters", quorum.voters().stream().map(QuorumInfo.ReplicaState::replicaId).sorted().toList());
        say("endpoints", quorum.nodes().keySet().stream().sorted().toList());
        say("leads", quorum.voters().stream().anyMatch(v -> v.replicaId() == quorum.leaderId()));
        FeatureMetadata features = admin.describeFeatures().featureMetadata().get();
        say("features", new TreeSet<>(features.finalizedFeatures().keySet()));
        say("directories", admin.describeLogDirs(List.of(1, 2, 3)).allDescriptions().get().size());
    }

    static void topics(Admin admin, String topic) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, 3, (short) 3))).all().get();
        say("again", refused(() -> admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get()));
        until(() -> partitions(admin, topic).size() == 3);
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get();
        until(() -> partitions(admin, topic).size() == 5);
        for (TopicPartitionInfo row : partitions(admin, topic)) {
            say("partition", row.partition() + " " + ids(row.replicas()) + " " + ids(row.isr()));
        }
        TopicPartition first = new TopicPartition(topic, 0);
        say("end", admin.listOffsets(Map.of(first, OffsetSpec.latest())).all().get().get(first).offset());
        Map<TopicPartition, RecordsToDelete> nothing = Map.of(first, RecordsToDelete.beforeOffset(-1));
        say("low", admin.deleteRecords(nothing).lowWatermarks().get(first).get().lowWatermark());
        Map<TopicPartition, RecordsToDelete> beyond = Map.of(first, RecordsToDelete.beforeOffset(99));
        say("beyond", refused(() -> admin.deleteRecords(beyond).all().get()));
    }

    static void settings(Admin admin, String topic) throws Exception {
        ConfigResource all = new ConfigResource(ConfigResource.Type.BROKER, "");
        ConfigResource one = new ConfigResource(ConfigResource.Type.BROKER, "2");
        ConfigResource three = new ConfigResource(ConfigResource.Type.BROKER, "3");
        ConfigResource own = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        change(admin, all, SETTING, "300");
        change(admin, one, SETTING, "400");
        change(admin, own, "retention.ms", "12345");
        until(() -> entry(admin, one, SETTING).value().equals("400"));
        until(() -> entry(admin, three, SETTING).value().equals("300"));
        until(() -> entry(admin, own, "retention.ms").value().equals("12345"));
        say("broker 2", entry(admin, one, SETTING).source());
        say("broker 3", entry(admin, three, SETTING).source());
        say("topic", entry(admin, own, "retention.ms").source());
        say("cluster", entry(admin, all, SETTING).value());
        for (ConfigResource resource : List.of(all, one)) {
            change(admin, resource, SETTING, null);
        }
        until(() -> entry(admin, one, SETTING).value().equals("15000"));
        say("wrong", refused(() -> { change(admin, own, "retention.ms", "soon"); return null; }));
    }

    static void elections(Admin admin, String topic) throws Exception {
        Set<TopicPartition> first = Set.of(new TopicPartition(topic, 0));
        for (ElectionType kind : ElectionType.values()) {
            say(kind.name(), refused(() -> admin.electLeaders(kind, first).all().get()));
        }
        Set<TopicPartition> unknown = Set.of(new TopicPartition(topic + "-not", 0));
        say("unknown", refused(() -> admin.electLeaders(ElectionType.PREFERRED, unknown).all().get()));
    }

    static void change(Admin admin, ConfigResource resource, String name, String value) throws Exception {
        AlterConfigOp.OpType kind = value == null ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET;
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry(name, value), kind);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
    }

    static ConfigEntry entry(Admin admin, ConfigResource resource, String name) throws Exception {
        Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        return config.get(name);
    }

    static List<TopicPartitionInfo> partitions(Admin admin, String topic) throws Exception {
        try {
            TopicDescription found = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            return found.partitions();
        } catch (ExecutionException notYet) {
            return List.of();
        }
    }

    static List<Integer> ids(Collection<Node> nodes) {
        return nodes.stream().map(Node::id).sorted().collect(Collectors.toList());
    }

    static String refused(Callable<?> step) throws Exception {
        try {
            step.call();
            return "done";
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        }
    }

    static void until(Callable<Boolean> condition) throws Exception {
        for (int tries = 0; !condition.call(); tries++) {
            if (tries == 1000) {
                throw new IllegalStateException("waited in vain");
            }
            Thread.sleep(20);
        }
    }

    static void say(String step, Object outcome) {
        System.out.println(step + ": " + outcome);
    }
}
