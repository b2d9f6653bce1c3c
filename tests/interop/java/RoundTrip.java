// The Java producer with its defaults writes every codec, the Java consumer reads what others wrote.
//
// RoundTrip BOOTSTRAP WRITE_PREFIX READ_PREFIX COUNT: writes topics PREFIX-<codec>, then reads the others.
// Prints one line a finding: name, tab, value.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class RoundTrip {
    static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        int count = Integer.parseInt(arguments[3]);
        for (String codec : CODECS) {
            write(bootstrap, arguments[1] + "-" + codec, codec, count);
        }
        for (String codec : CODECS) {
            read(bootstrap, arguments[2] + "-" + codec, codec, count);
        }
        tooLarge(bootstrap, arguments[1] + "-none");
    }

    static KafkaProducer<byte[], byte[]> producer(Map<String, Object> settings) {
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static void write(String bootstrap, String topic, String codec, int count) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        // Nothing but the codec and small batches: idempotence and acks=all are the defaults.
        Map<String, Object> settings =
            Map.of("bootstrap.servers", bootstrap, "compression.type", codec, "batch.size", 2000);
        try (KafkaProducer<byte[], byte[]> producer = producer(settings)) {
            for (int n = 0; n < count; n++) {
                byte[] key = n % 5 == 0 ? null : ("key " + n).getBytes(StandardCharsets.UTF_8);
                byte[] value = n % 7 == 0 ? null : ("value " + n).getBytes(StandardCharsets.UTF_8);
                ProducerRecord<byte[], byte[]> record =
                    new ProducerRecord<>(topic, 0, 1_700_000_000_000L + n, key, value);
                record.headers().add("n", Integer.toString(n).getBytes(StandardCharsets.UTF_8));
                record.headers().add("null", null);
                sent.add(producer.send(record));
            }
            producer.flush();
        }
        boolean inOrder = true;
        for (int n = 0; n < count; n++) {
            inOrder &= sent.get(n).get().offset() == n;
        }
        System.out.println("offsets in order " + codec + "\t" + inOrder);
    }

    static void read(String bootstrap, String topic, String codec, int count) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "check.crcs", true);
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            int seen = 0;
            long deadline = System.currentTimeMillis() + 30_000;
            while (seen < count && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    System.out.println("read " + codec + "\t" + described(record));
                    seen++;
                }
            }
        }
    }

    static String described(ConsumerRecord<byte[], byte[]> record) {
        StringBuilder headers = new StringBuilder();
        for (Header header : record.headers()) {
            headers.append(header.key()).append('=').append(text(header.value())).append(';');
        }
        return record.offset() + " " + record.timestamp() + " " + record.timestampType() + " "
            + text(record.key()) + " " + text(record.value()) + " " + headers;
    }

    static String text(byte[] bytes) {
        return bytes == null ? "null" : Base64.getEncoder().encodeToString(bytes);
    }

    static void tooLarge(String bootstrap, String topic) throws Exception {
        Map<String, Object> settings =
            Map.of("bootstrap.servers", bootstrap, "max.request.size", 10_000_000);
        try (KafkaProducer<byte[], byte[]> producer = producer(settings)) {
            producer.send(new ProducerRecord<>(topic, new byte[2_000_000])).get();
            System.out.println("too large\ttaken");
        } catch (java.util.concurrent.ExecutionException refused) {
            boolean right = refused.getCause() instanceof RecordTooLargeException;
            System.out.println("too large\t" + (right ? "refused" : refused.getCause().toString()));
        }
    }
}
