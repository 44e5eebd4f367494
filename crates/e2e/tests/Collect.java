import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicBoolean;
import systx.SystemTransaction;

/** Transactions that change several files, while other threads keep the collector busy: java Collect DIR ROUNDS */
class Collect {
    static final int FILES = 12;

    static String text(int round, int file) {
        return (round + " " + file + " ").repeat(200 + 10 * file);
    }

    /** All files are of this round; what is read is garbage at once. */
    static void check(Path dir, int round) throws Exception {
        for (int file = 0; file < FILES; file++) {
            if (!Files.readString(dir.resolve("f" + file)).equals(text(round, file))) {
                throw new IllegalStateException("file " + file + " is not of round " + round);
            }
        }
    }

    static void write(Path dir, int round) throws Exception {
        for (int file = 0; file < FILES; file++) {
            Files.writeString(dir.resolve("f" + file), text(round, file));
        }
    }

    public static void main(String[] args) throws Exception {
        Path dir = Path.of(args[0]);
        int rounds = Integer.parseInt(args[1]);
        var over = new AtomicBoolean();
        for (int n = 0; n < 2; n++) {
            var litter = new Thread(() -> {
                var kept = new byte[64][];
                for (int i = 0; !over.get(); i++) {
                    kept[i % kept.length] = new byte[1 << 16];
                }
            });
            litter.setDaemon(true);
            litter.start();
        }
        // Started before any transaction: it is outside.
        ExecutorService outside = Executors.newSingleThreadExecutor();
        outside.submit(() -> { write(dir, 0); return null; }).get();
        for (int round = 1; round <= rounds; round++) {
            int now = round;
            Callable<Void> before = () -> { check(dir, now - 1); return null; };
            SystemTransaction.atomic(dir, () -> {
                check(dir, now - 1);
                write(dir, now);
                System.gc();
                check(dir, now);
                outside.submit(before).get();
                return null;
            });
            outside.submit(() -> { check(dir, now); return null; }).get();
        }
        over.set(true);
        outside.shutdown();
        long collections = 0;
        for (GarbageCollectorMXBean bean : ManagementFactory.getGarbageCollectorMXBeans()) {
            collections += bean.getCollectionCount();
        }
        System.out.println(collections);
    }
}
