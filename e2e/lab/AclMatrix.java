import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Sends requests of any code with RocketMQ's remoting client. Each line of the file has, separated by tabs: number, address,
 * code, credentials ("signed", "missing", "replayed" or "changed"), user, secret, fields ("name=value,..."), body in base64.
 * Prints "RESULT number code remark" for each.
 */
public class AclMatrix {
    private static final Map<String, NettyRemotingClient> CLIENTS = new HashMap<>();
    private static final NettyRemotingClient PLAIN = start();
    private static RemotingCommand signed;

    /** The fields that requests of the table need. The hook of 4.8 signs what a header class declares. */
    public static class Header implements CommandCustomHeader {
        String topic, b, consumerGroup, group, groupName, srcGroup, destGroup, originTopic, offset, commitLogOffset;

        @Override
        public void checkFields() {
        }

        void set(String name, String value) throws Exception {
            Header.class.getDeclaredField(name).set(this, value);
        }
    }

    private static NettyRemotingClient start() {
        NettyRemotingClient client = new NettyRemotingClient(new NettyClientConfig());
        client.start();
        return client;
    }

    /** A client that signs, and remembers what it signed. */
    private static NettyRemotingClient signing(String user, String secret) {
        return CLIENTS.computeIfAbsent(user + ":" + secret, key -> {
            NettyRemotingClient client = start();
            client.registerRPCHook(new AclClientRPCHook(new SessionCredentials(user, secret)));
            client.registerRPCHook(new RPCHook() {
                @Override
                public void doBeforeRequest(String address, RemotingCommand request) {
                    signed = request;
                }

                @Override
                public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {
                }
            });
            return client;
        });
    }

    private static RemotingCommand ask(String[] line) throws Exception {
        String address = line[1], credentials = line[3];
        int code = Integer.parseInt(line[2]);
        Header header = new Header();
        Map<String, String> fields = new HashMap<>();
        for (String pair : line[6].isEmpty() ? new String[0] : line[6].split(",")) {
            String[] parts = pair.split("=", 2);
            header.set(parts[0], parts[1]);
            fields.put(parts[0], parts[1]);
        }
        RemotingCommand request = RemotingCommand.createRequestCommand(code, header);
        byte[] body = Base64.getDecoder().decode(line[7]);
        request.setBody(body.length == 0 ? null : body);
        if (credentials.equals("missing")) {
            return PLAIN.invokeSync(address, request, 20_000);
        }
        RemotingCommand answer = signing(line[4], line[5]).invokeSync(address, request, 20_000);
        if (credentials.equals("signed")) {
            return answer;
        }
        RemotingCommand again = RemotingCommand.createRequestCommand(code, null);
        again.setExtFields(new HashMap<>(signed.getExtFields()));
        again.setBody(signed.getBody());
        if (credentials.equals("changed")) {
            again.addExtField(fields.isEmpty() ? "another" : fields.keySet().iterator().next(), "changed");
        }
        return PLAIN.invokeSync(address, again, 20_000);
    }

    public static void main(String[] arguments) throws Exception {
        for (String text : Files.readAllLines(Paths.get(arguments[0]))) {
            String[] line = text.split("\t", -1);
            try {
                RemotingCommand answer = ask(line);
                String remark = String.valueOf(answer.getRemark()).replace('\n', ' ').replace('\r', ' ');
                System.out.println("RESULT " + line[0] + " " + answer.getCode() + " " + remark);
            } catch (Exception error) {
                System.out.println("RESULT " + line[0] + " none " + error);
            }
        }
        System.exit(0);
    }
}
