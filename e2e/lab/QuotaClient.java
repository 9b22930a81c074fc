import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** RocketMQ's clients at brokers with quotas. Prints one line per step: "STEP name: key=number ...". */
public class QuotaClient {
    private static String nameServer;

    private static void say(String step, Map<String, Long> counts) {
        StringBuilder line = new StringBuilder("\nSTEP " + step + ":");
        counts.forEach((name, count) -> line.append(' ').append(name).append('=').append(count));
        System.out.println(line);
    }

    private static String nameOf(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof MQBrokerException) {
                return "code-" + ((MQBrokerException) cause).getResponseCode();
            }
        }
        return error.getClass().getSimpleName();
    }

    private static void add(Map<String, Long> counts, String name) {
        counts.merge(name, 1L, Long::sum);
    }

    /** Sends one message after the other for this time. */
    private static void produce(String step, String topic, long forMs) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(step);
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName(step);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        Map<String, Long> counts = new TreeMap<>();
        long begin = System.currentTimeMillis();
        while (System.currentTimeMillis() - begin < forMs) {
            try {
                producer.send(new Message(topic, "body".getBytes()));
                add(counts, "sent");
            } catch (Exception error) {
                add(counts, nameOf(error));
            }
        }
        counts.put("ms", System.currentTimeMillis() - begin);
        producer.shutdown();
        say(step, counts);
    }

    /** A push consumer receives everything, however long it takes. */
    private static void consume(String step, String topic, int expected) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(step);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(step);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        CountDownLatch received = new CountDownLatch(expected);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> received.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        long begin = System.currentTimeMillis();
        consumer.start();
        received.await(180, TimeUnit.SECONDS);
        Map<String, Long> counts = new TreeMap<>();
        counts.put("received", expected - received.getCount());
        counts.put("ms", System.currentTimeMillis() - begin);
        consumer.shutdown();
        say(step, counts);
    }

    /** A pull consumer asks for the first message again and again for this time. */
    private static void pull(String step, String topic, long forMs) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(step);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(step);
        consumer.start();
        Map<String, Long> counts = new TreeMap<>();
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(topic).iterator().next();
        long begin = System.currentTimeMillis();
        while (System.currentTimeMillis() - begin < forMs) {
            try {
                consumer.pull(queue, "*", 0, 8).getMsgFoundList().forEach(each -> add(counts, "pulled"));
            } catch (Exception error) {
                add(counts, nameOf(error));
            }
        }
        counts.put("ms", System.currentTimeMillis() - begin);
        consumer.shutdown();
        say(step, counts);
    }

    public static void main(String[] arguments) throws Exception {
        nameServer = arguments[0];
        System.setProperty("com.rocketmq.sendMessageWithVIPChannel", "false");
        String step = arguments[1];
        if (step.startsWith("produce")) {
            produce(step, arguments[2], Long.parseLong(arguments[3]));
        } else if (step.startsWith("consume")) {
            consume(step, arguments[2], Integer.parseInt(arguments[3]));
        } else {
            pull(step, arguments[2], Long.parseLong(arguments[3]));
        }
        System.exit(0);
    }
}
