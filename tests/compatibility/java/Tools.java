// Runs Apache Kafka's command line tools in one JVM, because each start takes seconds of CPU.
// A line on standard input is one run: standard input in base64, main class and arguments, separated
// by tabs. The response is a line with exit code and length, then the output of the tool. A main
// class may also be a source file, which is compiled first.

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Base64;
import javax.tools.ToolProvider;
import org.apache.kafka.common.utils.Exit;

public class Tools {
    // The first exit counts: some tools catch its exception, print an error and exit again.
    static class Exited extends RuntimeException {
        int code = 0;
        int printed = -1;
    }

    public static void main(String[] unused) throws Exception {
        PrintStream out = System.out;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", -1);
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            int code = run(words, printed);
            out.println(code + "\t" + printed.size());
            printed.writeTo(out);
            out.flush();
        }
    }

    static int run(String[] words, ByteArrayOutputStream printed) throws Exception {
        Exited exited = new Exited();
        Exit.Procedure exit = (code, message) -> {
            if (exited.printed < 0) {
                exited.code = code;
                exited.printed = printed.size();
            }
            throw exited;
        };
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        PrintStream stream = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setIn(new ByteArrayInputStream(Base64.getDecoder().decode(words[0])));
        System.setOut(stream);
        System.setErr(stream);
        try {
            String[] arguments = Arrays.copyOfRange(words, 2, words.length);
            load(words[1]).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException error) {
            if (error.getCause() != exited) {
                error.getCause().printStackTrace(stream);
                exited.code = 99;
            }
        }
        if (exited.printed >= 0) {
            byte[] before = Arrays.copyOf(printed.toByteArray(), exited.printed);
            printed.reset();
            printed.write(before);
        }
        stream.flush();
        return exited.code;
    }

    static Class<?> load(String name) throws Exception {
        if (!name.endsWith(".java")) {
            return Class.forName(name);
        }
        Path folder = Files.createTempDirectory("riverrun-tools");
        String libraries = System.getProperty("java.class.path");
        String[] words = {"-proc:none", "-cp", libraries, "-d", folder.toString(), name};
        if (ToolProvider.getSystemJavaCompiler().run(null, System.out, System.err, words) != 0) {
            throw new IllegalArgumentException(name + " cannot be compiled");
        }
        URLClassLoader loader = new URLClassLoader(new URL[] {folder.toUri().toURL()});
        return loader.loadClass(Path.of(name).getFileName().toString().replace(".java", ""));
    }
}
