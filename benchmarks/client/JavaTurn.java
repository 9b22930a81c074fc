import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** The load of one turn with RocketMQ's Java client: MODE SERVER TOPIC GROUP SIZE OUTSTANDING SECONDS WARMUP COUNT. */
public final class JavaTurn {
    private static final int BATCH = 64;
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final CountDownLatch ended = new CountDownLatch(1);
    private static double seconds;
    private static double warmUp;
    private static long limit;
    private static long count;
    private static long firstAt;
    private static long[] begin;
    private static volatile boolean over;

    public static void main(String[] args) throws Exception {
        seconds = Double.parseDouble(args[6]);
        warmUp = Double.parseDouble(args[7]);
        limit = Long.parseLong(args[8]);
        int size = Integer.parseInt(args[4]);
        if (args[0].equals("consume")) {
            consume(args[1], args[2], args[3], size);
        } else {
            send(args[1], args[2], size, Integer.parseInt(args[5]), args[0].equals("batch"));
        }
        ended.await();
        System.exit(0);
    }

    private static void send(String server, String topic, int size, int outstanding, boolean batch) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench-java");
        producer.setNamesrvAddr(server);
        producer.start();
        byte[] body = "x".repeat(size).getBytes();
        if (batch) {
            while (!over) {
                List<Message> messages = new ArrayList<>(BATCH);
                for (int number = 0; number < BATCH; number++) {
                    messages.add(new Message(topic, body));
                }
                producer.send(messages);
                add(BATCH);
            }
            return;
        }
        Semaphore room = new Semaphore(outstanding);
        while (!over) {
            room.acquire();
            producer.send(new Message(topic, body), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    add(1);
                    room.release();
                }

                @Override
                public void onException(Throwable error) {
                    System.err.println(error);
                    System.exit(1);
                }
            });
        }
    }

    private static void consume(String server, String topic, String group, int size) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(server);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            if (messages.get(0).getBody().length != size) {
                System.exit(1);
            }
            add(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    private static synchronized void add(int more) {
        count += more;
        long now = System.nanoTime();
        if (firstAt == 0) {
            firstAt = now;
        }
        boolean warm = limit > 0 ? count >= limit / 5 : now - firstAt >= warmUp * 1e9;
        if (begin == null) {
            if (warm) {
                begin = new long[] {count, now, SYSTEM.getProcessCpuTime()};
            }
        } else if (!over && (limit > 0 ? count >= limit : now - begin[1] >= seconds * 1e9)) {
            over = true;
            System.out.printf("{\"messages\": %d, \"seconds\": %s, \"cpu_s\": %s}%n", count - begin[0],
                    (now - begin[1]) / 1e9, (SYSTEM.getProcessCpuTime() - begin[2]) / 1e9);
            System.out.flush();
            ended.countDown();
        }
    }
}
