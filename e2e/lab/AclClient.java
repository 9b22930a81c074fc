import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** RocketMQ's clients and admin tool with signatures. Prints one line per step: its name, and what it got. */
public class AclClient {
    private static String nameServer;

    private static RPCHook hook(String key, String secret) {
        return key == null ? null : new AclClientRPCHook(new SessionCredentials(key, secret));
    }

    private static void say(String step, String result) {
        System.out.println("\nSTEP " + step + ": " + result.replace('\n', ' '));
    }

    private interface Work {
        String run() throws Exception;
    }

    private static void step(String name, Work work) {
        try {
            say(name, work.run());
        } catch (Throwable error) {
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            say(name, "failed: " + error + " / " + cause);
        }
    }

    private static String produce(String group, String topic, RPCHook hook, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group, hook);
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName(group);
        producer.start();
        try {
            for (int number = 0; number < count; number++) {
                producer.send(new Message(topic, "TagA", "k" + number, ("body " + number + " \u00e9").getBytes("UTF-8")));
            }
            List<Message> batch = new ArrayList<>();
            batch.add(new Message(topic, "TagB", "b1", new byte[] {1}));
            batch.add(new Message(topic, "TagB", "b2", new byte[] {2}));
            producer.send(batch);
            return "sent " + (count + 2);
        } finally {
            producer.shutdown();
        }
    }

    private static String consume(String group, String topic, RPCHook hook, int expected) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(null, group, hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(group);
        consumer.subscribe(topic, "*");
        CountDownLatch received = new CountDownLatch(expected);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> received.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            received.await(60, TimeUnit.SECONDS);
            return "received " + (expected - received.getCount());
        } finally {
            consumer.shutdown();
        }
    }

    private static String pull(String group, String topic, RPCHook hook) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group, hook);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(group + "pull");
        consumer.start();
        try {
            Set<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(topic);
            int found = 0;
            for (MessageQueue queue : queues) {
                found += consumer.pull(queue, "*", 0, 32).getMsgFoundList() == null ? 0 : 1;
            }
            return "pulled from " + found + " queues";
        } finally {
            consumer.shutdown();
        }
    }

    /** The admin tool of 4.8 signs with the account of conf/tools.yml, whatever hook it gets. */
    private static void admin(String key, String... arguments) throws Exception {
        String tools = "accessKey: " + key + "\nsecretKey: \"12345678\"\n";
        Files.write(Paths.get(System.getProperty("rocketmq.home.dir"), "conf", "tools.yml"), tools.getBytes());
        System.out.println("\nSTEP mqadmin " + arguments[0] + " of " + key + ":");
        MQAdminStartup.main0(arguments, hook(key, "12345678"));
        System.out.flush();
        System.err.flush();
    }

    public static void main(String[] arguments) throws Exception {
        nameServer = arguments[0];
        String broker = arguments[1];
        System.setProperty("rocketmq.namesrv.addr", nameServer);
        System.setProperty("com.rocketmq.sendMessageWithVIPChannel", "false");
        RPCHook producer = hook("producer1", "12345678");
        RPCHook consumer = hook("consumer1", "12345678");
        admin("administrator", "updateTopic", "-b", broker, "-t", "Orders", "-r", "4", "-w", "4");
        admin("administrator", "updateTopic", "-b", broker, "-t", "Other", "-r", "4", "-w", "4");
        admin("producer1", "updateTopic", "-b", broker, "-t", "Third");
        step("producer, its topic", () -> produce("p1", "Orders", producer, 20));
        step("producer, another topic", () -> produce("p2", "Other", producer, 1));
        step("consumer produces", () -> produce("p3", "Orders", consumer, 1));
        step("wrong secret", () -> produce("p4", "Orders", hook("producer1", "87654321"), 1));
        step("unknown account", () -> produce("p5", "Orders", hook("stranger", "12345678"), 1));
        step("no signature", () -> produce("p6", "Orders", null, 1));
        step("consumer, its topic and group", () -> consume("g1", "Orders", consumer, 22));
        step("consumer, another group", () -> pull("g2", "Orders", consumer));
        step("consumer, another topic", () -> pull("g1", "Other", consumer));
        step("producer consumes", () -> pull("g1", "Orders", producer));
        if (arguments[2].startsWith("5.")) {
            users(broker);
        } else {
            accounts(broker);
        }
        admin("administrator", "brokerStatus", "-b", broker);
        System.exit(0);
    }

    private static void accounts(String broker) throws Exception {
        admin("administrator", "updateAclConfig", "-b", broker, "-a", "added01", "-s", "12345678", "-t", "Other=PUB");
        step("added account", () -> produce("p7", "Other", hook("added01", "12345678"), 1));
        admin("administrator", "updateGlobalWhiteAddr", "-b", broker, "-g", "10.1.2.3,10.1.3.*");
        admin("administrator", "clusterAclConfigVersion", "-b", broker);
        admin("administrator", "getAccessConfigSubCommand", "-b", broker);
        admin("administrator", "deleteAccessConfig", "-b", broker, "-a", "added01");
        step("deleted account", () -> produce("p8", "Other", hook("added01", "12345678"), 1));
    }

    /** Users and policies of ACL 2.0. */
    private static void users(String broker) throws Exception {
        RPCHook alice = hook("alice01", "12345678");
        String subject = "User:alice01";
        admin("administrator", "createUser", "-b", broker, "-u", "alice01", "-p", "12345678", "-t", "Normal");
        step("user without a policy", () -> produce("p7", "Other", alice, 1));
        admin("administrator", "createAcl", "-b", broker, "-s", subject, "-r", "Topic:Oth*,Group:u1", "-a", "Pub,Sub", "-d", "Allow");
        step("user with a policy", () -> produce("p8", "Other", alice, 3));
        step("user consumes", () -> consume("u1", "Other", alice, 5));
        step("user, another topic", () -> produce("p9", "Orders", alice, 1));
        admin("alice01", "listUser", "-b", broker);
        admin("administrator", "getUser", "-b", broker, "-u", "alice01");
        admin("administrator", "getAcl", "-b", broker, "-s", subject);
        admin("administrator", "updateAcl", "-b", broker, "-s", subject, "-r", "Topic:Oth*", "-a", "Pub", "-d", "Deny");
        step("user with a policy that denies", () -> produce("p10", "Other", alice, 1));
        admin("administrator", "listAcl", "-b", broker);
        admin("administrator", "deleteAcl", "-b", broker, "-s", subject);
        admin("administrator", "deleteUser", "-b", broker, "-u", "alice01");
        step("deleted user", () -> produce("p11", "Other", alice, 1));
    }
}
