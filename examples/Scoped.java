import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import systx.SystemTransaction;
import systx.SystemTransaction.Declared;

/** Moves 1 from file a to file b of a guarded directory, N times, and never has to try again: java Scoped DIR N */
class Scoped {
    static void add(Path path, int n) throws IOException {
        int value = Integer.parseInt(Files.readString(path).trim());
        Files.writeString(path, Integer.toString(value + n));
    }

    public static void main(String[] args) throws Exception {
        Path dir = Path.of(args[0]), a = dir.resolve("a"), b = dir.resolve("b");
        for (int i = 0; i < Integer.parseInt(args[1]); i++) {
            try (var t = SystemTransaction.begin(dir, 0, Declared.write(a), Declared.write(b))) {
                add(a, -1);
                add(b, 1);
                t.commit();
            }
        }
    }
}
