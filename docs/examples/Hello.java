import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

public class Hello {
    public static void main(String[] args) throws Exception {
        var consumer = new DefaultMQPushConsumer("readers");
        consumer.setNamesrvAddr("127.0.0.1:9876");
        consumer.subscribe("Hello", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> System.out.println(new String(message.getBody())));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        var producer = new DefaultMQProducer("writers");
        producer.setNamesrvAddr("127.0.0.1:9876");
        producer.start();
        System.out.println(producer.send(new Message("Hello", "hello, world".getBytes())));
        consumer.start();
        Thread.sleep(5000);
        consumer.shutdown();
        producer.shutdown();
    }
}
