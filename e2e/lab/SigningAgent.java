import java.lang.instrument.ClassFileTransformer;
import java.lang.instrument.Instrumentation;
import java.security.ProtectionDomain;
import jdk.internal.org.objectweb.asm.ClassReader;
import jdk.internal.org.objectweb.asm.ClassVisitor;
import jdk.internal.org.objectweb.asm.ClassWriter;
import jdk.internal.org.objectweb.asm.MethodVisitor;
import jdk.internal.org.objectweb.asm.Opcodes;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Gives each RocketMQ client of a JVM RocketMQ's AclClientRPCHook, as if the program had passed one: the programs of the
 * peer lab pass none. The argument is "accessKey:secretKey". The call is behind those of all other
 * hooks.
 */
public class SigningAgent {
    private static final String CLIENT = "org/apache/rocketmq/remoting/netty/NettyRemotingAbstract";
    private static final String HOOKS = "doBeforeRpcHooks";
    private static String[] account;
    private static volatile RPCHook hook;

    public static void premain(String argument, Instrumentation instrumentation) {
        account = argument.split(":", 2);
        instrumentation.addTransformer(new Transformer());
    }

    /** What the client calls before it sends a request. */
    public static void sign(String address, RemotingCommand request) {
        if (hook == null) {
            hook = new AclClientRPCHook(new SessionCredentials(account[0], account[1]));
        }
        hook.doBeforeRequest(address, request);
    }

    private static class Transformer implements ClassFileTransformer {
        @Override
        public byte[] transform(ClassLoader loader, String name, Class<?> known, ProtectionDomain domain, byte[] bytes) {
            if (!CLIENT.equals(name)) {
                return null;
            }
            ClassReader reader = new ClassReader(bytes);
            ClassWriter writer = new ClassWriter(reader, ClassWriter.COMPUTE_MAXS);
            reader.accept(new Calls(writer), 0);
            return writer.toByteArray();
        }
    }

    private static class Calls extends ClassVisitor {
        Calls(ClassVisitor next) {
            super(Opcodes.ASM8, next);
        }

        @Override
        public MethodVisitor visitMethod(int access, String name, String descriptor, String signature, String[] thrown) {
            MethodVisitor next = super.visitMethod(access, name, descriptor, signature, thrown);
            if (!HOOKS.equals(name)) {
                return next;
            }
            return new MethodVisitor(Opcodes.ASM8, next) {
                @Override
                public void visitInsn(int opcode) {
                    if (opcode == Opcodes.RETURN) { // after all other hooks: those of 5.x add fields
                        visitVarInsn(Opcodes.ALOAD, 1);
                        visitVarInsn(Opcodes.ALOAD, 2);
                        visitMethodInsn(Opcodes.INVOKESTATIC, "SigningAgent", "sign", descriptor, false);
                    }
                    super.visitInsn(opcode);
                }
            };
        }
    }
}
