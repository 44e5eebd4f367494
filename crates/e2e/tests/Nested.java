import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import systx.SystemTransaction;

/** Moves 1 from a to b N times, where b is another transaction's, inside: java Nested DIR N. */
class Nested {
    static void add(Path path, int n) throws IOException {
        int value = Integer.parseInt(Files.readString(path).trim());
        Files.writeString(path, Integer.toString(value + n));
    }

    static void swallowed(Path dir) throws Exception {
        try {
            SystemTransaction.atomic(dir, () -> {
                try {
                    SystemTransaction.atomic(dir, () -> {
                        Files.writeString(dir.resolve("inner"), "");
                        throw new IllegalStateException("failed");
                    });
                } catch (IllegalStateException expected) {
                    Files.writeString(dir.resolve("outer"), "");
                }
                return null;
            });
            throw new AssertionError("it is committed");
        } catch (IOException e) {
            String told = "an inner transaction was closed without a commit: nothing is committed";
            if (!told.equals(e.getMessage())) throw e;
        }
        for (String name : new String[] {"inner", "outer"}) {
            if (Files.exists(dir.resolve(name))) throw new AssertionError(name + " is there");
        }
    }

    public static void main(String[] args) throws Exception {
        Path dir = Path.of(args[0]);
        swallowed(dir);
        for (int i = 0; i < Integer.parseInt(args[1]); i++) {
            SystemTransaction.atomic(dir, () -> {
                add(dir.resolve("a"), -1);
                SystemTransaction.atomic(dir, () -> {
                    add(dir.resolve("b"), 1);
                    return null;
                });
                return null;
            });
        }
    }
}
