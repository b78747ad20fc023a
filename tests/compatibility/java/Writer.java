// Apache Kafka's producer with its defaults (idempotent, acks=all, retries without end), which sends
// numbered values until a file appears. Arguments: broker addresses, topic, number of partitions, a
// file for acknowledgements and failures, line by line, and the file that ends it.

import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class Writer {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        Path end = Path.of(arguments[4]);
        StringSerializer text = new StringSerializer();
        try (PrintStream out = new PrintStream(arguments[3]);
                KafkaProducer<String, String> producer = new KafkaProducer<>(settings, text, text)) {
            for (int number = 0; !Files.exists(end); number++) {
                String value = "java-" + number;
                producer.send(
                    new ProducerRecord<>(topic, number % partitions, null, value),
                    (done, error) -> out.println(
                        error == null ? done.partition() + " " + done.offset() + " " + value : "! " + error));
                Thread.sleep(5);
            }
        }
    }
}
