// One message a transaction, as fast as commits return; prints transactions a second and commit latencies in ms.
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class TransactionLoad {
    public static void main(String[] arguments) {
        String topic = arguments[1];
        double seconds = Double.parseDouble(arguments[2]);
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "transactional.id", "java-load");
        var serializer = new ByteArraySerializer();
        try (var producer = new KafkaProducer<>(settings, serializer, serializer)) {
            producer.initTransactions();
            run(producer, topic, seconds); // unmeasured: the client warms up, too
            List<Double> latencies = new ArrayList<>();
            long begun = System.nanoTime();
            latencies.addAll(run(producer, topic, seconds));
            double elapsed = (System.nanoTime() - begun) / 1e9;
            Collections.sort(latencies);
            int count = latencies.size();
            System.out.printf(
                "{\"rate\": %f, \"p50\": %f, \"p99\": %f}%n",
                count / elapsed, latencies.get(count / 2), latencies.get((int) (count * 0.99)));
        }
    }

    private static List<Double> run(KafkaProducer<byte[], byte[]> producer, String topic, double seconds) {
        List<Double> latencies = new ArrayList<>();
        long end = System.nanoTime() + (long) (seconds * 1e9);
        while (System.nanoTime() < end) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, new byte[100]));
            long committing = System.nanoTime();
            producer.commitTransaction();
            latencies.add((System.nanoTime() - committing) / 1e6);
        }
        return latencies;
    }
}
