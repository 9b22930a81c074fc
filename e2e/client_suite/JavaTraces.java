import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Sends and consumes a message with traces: JavaTraces NAMESERVER GROUP TOPIC. From 4.9 on also a transaction. */
public final class JavaTraces {
    private static final int PATIENCE_MS = 30_000;

    public static void main(String[] args) {
        try {
            run(args);
            System.exit(0);
        } catch (Exception error) { // the clients' threads would keep the process
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String[] args) throws Exception {
        var producer = new DefaultMQProducer(args[1] + "-p", true, null);
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(PATIENCE_MS);
        producer.start();
        Message sent = message(args[2]);
        System.out.println("sent " + producer.send(sent).getMsgId());
        transaction(args);
        var consumed = new CountDownLatch(1);
        var consumer = new DefaultMQPushConsumer(args[1], true, null);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[2], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            consumed.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!consumed.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("the message did not come");
        }
        Thread.sleep(2000); // the record of its end is written after the listener has returned
        consumer.shutdown();
        producer.shutdown();
        System.out.println("done");
    }

    private static Message message(String topic) {
        Message made = new Message(topic, "A", "hello".getBytes(StandardCharsets.UTF_8));
        made.setKeys(List.of("k1-" + topic, "k2"));
        return made;
    }

    private static void transaction(String[] args) throws Exception {
        TransactionMQProducer producer;
        try {
            producer = TransactionMQProducer.class
                    .getConstructor(String.class, String.class, org.apache.rocketmq.remoting.RPCHook.class,
                            boolean.class, String.class)
                    .newInstance(null, args[1] + "-t", null, true, null);
        } catch (NoSuchMethodException before49) {
            return;
        }
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(PATIENCE_MS);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.ROLLBACK_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        producer.start();
        producer.sendMessageInTransaction(message(args[2]), null);
        producer.shutdown();
    }
}
