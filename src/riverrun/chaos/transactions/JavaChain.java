// A read-process-write chain of Apache Kafka's clients, which another process drives by lines.
//
// Arguments: bootstrap servers, the name (group and transactional id), the topics of inputs and
// outputs, and three times in milliseconds: session, transaction, call. The variable CHAOS_LOGIN has
// the settings to log in with, as lines NAME=VALUE. Fields are separated by tabs.
//
//   request                        response
//   read                           batch (PARTITION OFFSET VALUE)*
//   write (PARTITION VALUE)*       written, or failed
//   commit                         committed, or failed
//   abort                          aborted, or failed
//
// After "aborted" and "failed" the transaction has ended, and the next "read" continues at the
// committed offsets. The end of the input ends the process, whatever it waits for.

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class JavaChain {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long RESTART_MS = 200;
    private static final int BATCH_MAX = 50;

    private final Properties producerSettings = new Properties();
    private final KafkaConsumer<String, String> consumer;
    private final String outputs;
    private final Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
    private KafkaProducer<String, String> producer;

    private JavaChain(String[] arguments) {
        String bootstrap = arguments[0], name = arguments[1], callMs = arguments[6];
        outputs = arguments[3];
        producerSettings.putAll(login());
        producerSettings.put("bootstrap.servers", bootstrap);
        producerSettings.put("transactional.id", name);
        producerSettings.put("transaction.timeout.ms", arguments[5]);
        producerSettings.put("max.block.ms", callMs);
        producerSettings.put("delivery.timeout.ms", callMs);
        producerSettings.put("request.timeout.ms", "3000");
        producerSettings.put("reconnect.backoff.max.ms", "200");
        Properties settings = new Properties();
        settings.putAll(login());
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", name);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", "read_committed");
        settings.put("session.timeout.ms", arguments[4]);
        settings.put("heartbeat.interval.ms", "500");
        settings.put("max.poll.records", String.valueOf(BATCH_MAX));
        settings.put("default.api.timeout.ms", callMs);
        settings.put("request.timeout.ms", "5000");
        settings.put("reconnect.backoff.max.ms", "200");
        StringDeserializer text = new StringDeserializer();
        consumer = new KafkaConsumer<>(settings, text, text);
        consumer.subscribe(List.of(arguments[2]));
    }

    private static Map<String, String> login() {
        Map<String, String> settings = new HashMap<>();
        System.getenv().getOrDefault("CHAOS_LOGIN", "").lines().forEach(line -> {
            int at = line.indexOf('=');
            settings.put(line.substring(0, at), line.substring(at + 1));
        });
        return settings;
    }

    public static void main(String[] arguments) throws InterruptedException {
        BlockingQueue<String> requests = new LinkedBlockingQueue<>();
        Thread reader = new Thread(() -> receive(requests));
        reader.setDaemon(true);
        reader.start();
        JavaChain chain = new JavaChain(arguments);
        chain.restart();
        while (true) {
            String[] request = requests.take().split("\t");
            switch (request[0]) {
                case "read" -> chain.read();
                case "write" -> chain.write(request);
                case "commit" -> chain.commit();
                case "abort" -> chain.abort();
                default -> throw new IllegalArgumentException(request[0]);
            }
        }
    }

    private static void receive(BlockingQueue<String> requests) {
        try (BufferedReader input = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                requests.add(line);
            }
        } catch (IOException ended) {
            // The same as the end of the input.
        }
        Runtime.getRuntime().halt(0);
    }

    private static void respond(CharSequence line) {
        System.out.println(line);
        System.out.flush();
    }

    private void read() {
        StringBuilder line = new StringBuilder("batch");
        offsets.clear();
        for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
            line.append('\t').append(record.partition());
            line.append('\t').append(record.offset()).append('\t').append(record.value());
            offsets.put(
                new TopicPartition(record.topic(), record.partition()),
                new OffsetAndMetadata(record.offset() + 1));
        }
        respond(line);
    }

    private void write(String[] request) throws InterruptedException {
        try {
            producer.beginTransaction();
            for (int at = 1; at < request.length; at += 2) {
                int partition = Integer.parseInt(request[at]);
                producer.send(new ProducerRecord<>(outputs, partition, null, request[at + 1]));
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            respond("written");
        } catch (KafkaException error) {
            fail(error);
        }
    }

    private void commit() throws InterruptedException {
        try {
            producer.commitTransaction();
            respond("committed");
        } catch (KafkaException error) {
            fail(error);
        }
    }

    private void abort() throws InterruptedException {
        try {
            producer.abortTransaction();
            rewind();
            respond("aborted");
        } catch (KafkaException error) {
            fail(error);
        }
    }

    /** Abort, or replace a producer that cannot: it is fenced, or its last call timed out. */
    private void fail(KafkaException reason) throws InterruptedException {
        try {
            producer.abortTransaction();
            rewind();
        } catch (KafkaException | IllegalStateException error) {
            restart();
        }
        respond("failed\t" + reason.toString().replaceAll("\\s+", " "));
    }

    private void restart() throws InterruptedException {
        StringSerializer text = new StringSerializer();
        while (true) {
            if (producer != null) {
                producer.close(Duration.ZERO);
            }
            producer = new KafkaProducer<>(producerSettings, text, text);
            try {
                producer.initTransactions();
                rewind();
                return;
            } catch (KafkaException error) {
                Thread.sleep(RESTART_MS);
            }
        }
    }

    private void rewind() {
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
        for (TopicPartition partition : consumer.assignment()) {
            OffsetAndMetadata offset = committed.get(partition);
            consumer.seek(partition, offset == null ? 0 : offset.offset());
        }
    }
}
