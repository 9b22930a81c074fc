import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * One consumer of RocketMQ's in a group with other clients: JavaMember NAMESERVER GROUP TOPIC STRATEGY.
 *
 * Each message is a line: the time in ms since 1970 at which its processing began, its queue, its offset, its body. It
 * runs until it is ended.
 */
public final class JavaMember {
    public static void main(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[1]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAllocateMessageQueueStrategy(args[3].equals("AVG")
                ? new AllocateMessageQueueAveragely() : new AllocateMessageQueueConsistentHash());
        consumer.subscribe(args[2], "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                System.out.println(System.currentTimeMillis() + " " + message.getQueueId() + " "
                        + message.getQueueOffset() + " " + body);
            }
            System.out.flush();
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        System.out.println("started");
        Thread.currentThread().join();
    }
}
