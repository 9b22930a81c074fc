import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * One producer of RocketMQ's that sends the whole time, as an application does: SendAgain NAMESERVER TOPIC POLL_MS.
 *
 * All settings are the client's defaults, but for the time between two looks at the route if POLL_MS is not 0. Each send
 * is a line: ok or failed, begin and end in ms since 1970, and why. It runs until it is ended.
 */
public final class SendAgain {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("send-again");
        producer.setNamesrvAddr(args[0]);
        int poll = Integer.parseInt(args[2]);
        if (poll > 0) {
            producer.setPollNameServerInterval(poll);
        }
        producer.start();
        System.out.println("started");
        for (int number = 0;; number++) {
            byte[] body = ("send-again-" + number).getBytes(StandardCharsets.UTF_8);
            long begin = System.currentTimeMillis();
            String end;
            try {
                SendResult result = producer.send(new Message(args[1], body));
                end = result.getSendStatus() == SendStatus.SEND_OK ? "ok" : "failed";
                System.out.println(end + " " + begin + " " + System.currentTimeMillis() + " " + result.getSendStatus());
            } catch (Exception error) {
                String reason = String.valueOf(error.getMessage()).split("\n")[0];
                if (error.getCause() != null) {
                    reason += "; the last try: " + String.valueOf(error.getCause()).split("\n")[0];
                }
                System.out.println("failed " + begin + " " + System.currentTimeMillis() + " " + reason);
            }
            Thread.sleep(10);
        }
    }
}
