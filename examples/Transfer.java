import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import systx.SystemTransaction;

/** Moves 1 from file a to file b of a guarded directory, N times: java Transfer DIR N */
class Transfer {
    static void add(Path path, int n) throws IOException {
        int value = Integer.parseInt(Files.readString(path).trim());
        Files.writeString(path, Integer.toString(value + n));
    }

    public static void main(String[] args) throws Exception {
        Path dir = Path.of(args[0]);
        for (int i = 0; i < Integer.parseInt(args[1]); i++) {
            SystemTransaction.atomic(dir, () -> {
                add(dir.resolve("a"), -1);
                add(dir.resolve("b"), 1);
                return null;
            });
        }
    }
}
