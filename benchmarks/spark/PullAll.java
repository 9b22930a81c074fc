import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Reads topics to their ends with RocketMQ's own pull consumer; prints messages and seconds. */
public class PullAll {
    public static void main(String[] args) {
        try {
            run(args);
            System.exit(0);
        } catch (Exception error) { // the client's threads would keep the process alive
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String[] args) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("spark-bench");
        consumer.setNamesrvAddr(args[0]);
        consumer.start();
        List<MessageQueue> queues = new ArrayList<>();
        for (int i = 2; i < args.length; i++) {
            queues.addAll(consumer.fetchSubscribeMessageQueues(args[i]));
        }
        ExecutorService threads = Executors.newFixedThreadPool(Integer.parseInt(args[1]));
        long begin = System.nanoTime();
        List<Future<Long>> found = new ArrayList<>();
        for (MessageQueue queue : queues) {
            found.add(threads.submit(() -> {
                long end = consumer.maxOffset(queue);
                long count = 0;
                for (long offset = consumer.minOffset(queue); offset < end; ) {
                    PullResult result = consumer.pull(queue, "*", offset, 32);
                    if (result.getPullStatus() == PullStatus.FOUND) {
                        for (MessageExt message : result.getMsgFoundList()) {
                            count += message.getTopic() == null ? 0 : 1;
                        }
                    }
                    offset = result.getNextBeginOffset();
                }
                return count;
            }));
        }
        long messages = 0;
        for (Future<Long> each : found) {
            messages += each.get();
        }
        System.out.println(messages + " " + (System.nanoTime() - begin) / 1e9);
    }
}
