import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.FileDescriptor;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** RocketMQ's admin tool for many command lines: one in each line of standard input, its arguments separated by tabs;
 *  an empty one lists the commands. "sendTraced TOPIC -n NAMESERVER" is not the tool's: a producer sends a message.
 *  Standard output has what a command prints, also on standard error, and then a line with the character 4. */
public class AdminTool {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(out);
        System.setErr(out);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                String[] parts = line.split("\t");
                if (parts[0].equals("sendTraced")) {
                    sendTraced(parts[1], parts[3]);
                    out.println("\u0004");
                    continue;
                }
                MQAdminStartup.main0(line.isEmpty() ? new String[0] : parts, null);
            } catch (Throwable error) {
                error.printStackTrace();
            }
            out.println();
            out.println("\u0004");
        }
        System.exit(0);
    }

    /** Sends a message with a trace, which the producer sends when it is shut down at the latest. */
    private static void sendTraced(String topic, String nameserver) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("traced", null, true, null);
        producer.setNamesrvAddr(nameserver);
        producer.start();
        SendResult result = producer.send(new Message(topic, "traced".getBytes(StandardCharsets.UTF_8)));
        producer.shutdown();
        System.out.println(result.getSendStatus() + " " + result.getMsgId());
        System.out.println();
    }
}
