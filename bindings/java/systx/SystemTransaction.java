package systx;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.concurrent.Callable;

/**
 * System transactions for platform threads, on directories that {@code systx mount} guards: what the calling thread does
 * below the directory between {@link #begin} and {@link #commit} happens at once or not at all.
 *
 * <pre>{@code
 * try (var t = SystemTransaction.begin(dir)) {
 *     ...
 *     t.commit();
 * }
 * }</pre>
 *
 * Needs libsystx and libsystx_jni on {@code java.library.path}; see docs/LIBRARY.md. A virtual thread is carried by
 * changing platform threads and cannot have a transaction.
 */
public final class SystemTransaction implements AutoCloseable {
    /** Nothing will be committed; what is read is of one moment. */
    public static final int READ_ONLY = 1;
    /** Snapshot isolation instead of serializable. */
    public static final int SNAPSHOT = 2;
    /** Another attempt of what this thread lost last: it keeps its age. */
    public static final int RETRY = 4;
    /** {@link #begin} fails with EAGAIN rather than wait for others: for a thread that holds a lock. */
    public static final int NONBLOCK = 8;
    /** The commit does not wait for the disk: it is durable a moment later, in the order of the commits. */
    public static final int RELAXED = 64;

    private static final int ECANCELED = 125;
    private static final int LOST = 2;

    /** The transaction has lost a conflict: nothing was committed. */
    public static final class ConflictException extends IOException {
        private static final long serialVersionUID = 1;

        ConflictException(String message) {
            super(message);
        }
    }

    static {
        System.loadLibrary("systx_jni");
    }

    /** Whether an inner one of this thread's was closed without a commit. */
    private static final ThreadLocal<Boolean> dropped = ThreadLocal.withInitial(() -> false);

    private final Thread owner = Thread.currentThread();
    /** It is part of another one, which decides. */
    private final boolean inner;
    private boolean open = true;

    private SystemTransaction(boolean inner) {
        this.inner = inner;
        if (!inner) {
            dropped.set(false);
        }
    }

    /** After a begin that is to be called then. */
    private static SystemTransaction begun(boolean inner, int errno) throws IOException {
        check(errno, false);
        return new SystemTransaction(inner);
    }

    /** As {@link #begin(Path, int)} without flags. */
    public static SystemTransaction begin(Path dir) throws IOException {
        return begin(dir, 0);
    }

    /**
     * Begins a transaction of this thread. Inside one it is part of that: if it is closed without a commit, the whole is
     * dropped when the outermost ends.
     */
    public static SystemTransaction begin(Path dir, int flags) throws IOException {
        boolean inner = id0() != 0;
        return begun(inner, begin0(bytes(dir.toString()), flags));
    }

    /**
     * Begins a transaction of this thread with a place in an order: transactions of one order commit one after another with
     * rising numbers from 0 on, whenever and by whichever thread they are begun.
     */
    public static SystemTransaction begin(Path dir, int flags, String order, long number) throws IOException {
        boolean inner = id0() != 0;
        return begun(inner, order0(bytes(dir.toString()), flags, bytes(order), number));
    }

    /** Which number comes next in an order: all lower ones are committed, whatever ended since. */
    public static long nextOrder(Path dir, String order) throws IOException {
        long[] next = new long[1];
        check(next0(bytes(dir.toString()), bytes(order), next), false);
        return next[0];
    }

    /** From now on {@code next} comes next in an order; 0 ends the order. */
    public static void resetOrder(Path dir, String order, long next) throws IOException {
        check(reset0(bytes(dir.toString()), bytes(order), next), false);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** A path of a scope: {@code reads}, or else it is written, made or removed. */
    public record Declared(Path path, boolean reads) {
        /** To be written, made or removed. */
        public static Declared write(Path path) {
            return new Declared(path, false);
        }

        /** To be read. */
        public static Declared read(Path path) {
            return new Declared(path, true);
        }
    }

    /**
     * Begins a transaction of this thread that declares what it will touch, for callers that cannot try again: it waits until nobody
     * else has declared the same, and then loses to no other one on these paths.
     */
    public static SystemTransaction begin(Path dir, int flags, Declared... scope) throws IOException {
        byte[][] paths = new byte[scope.length][];
        boolean[] reads = new boolean[scope.length];
        for (int i = 0; i < scope.length; i++) {
            paths[i] = bytes(scope[i].path.toString());
            reads[i] = scope[i].reads;
        }
        boolean inner = id0() != 0;
        return begun(inner, scoped0(bytes(dir.toString()), flags, paths, reads));
    }

    /**
     * Runs {@code body} in a transaction, again and again until it has not lost a conflict. What it does beside the
     * guarded directory happens at each attempt. Inside another transaction of this thread, {@code body} is part of that one,
     * which tries again, and is dropped as a whole if {@code body} fails.
     */
    public static <T> T atomic(Path dir, Callable<T> body) throws Exception {
        boolean inner = id0() != 0;
        for (int flags = 0;; flags = RETRY) {
            try (var t = begin(dir, flags)) {
                T result = body.call();
                t.commit();
                return result;
            } catch (Exception e) {
                // What a transaction does that has lost means nothing, exceptions included. The outermost tries again.
                if (inner || state0() != LOST) {
                    throw e;
                }
            }
        }
    }

    /** Commits, if it is the outermost: on return, changes are durable and visible. */
    public void commit() throws IOException {
        mine();
        if (!inner && dropped.get()) {
            close();
            if (state0() != LOST) {
                throw new IOException("an inner transaction was closed without a commit: nothing is committed");
            }
            throw new ConflictException("conflict " + conflict0());
        }
        check(end0(), true);
        open = false;
    }

    /** Drops the transaction, unless it is committed; an inner one with the outermost: until then nothing gets outside. */
    @Override
    public void close() throws IOException {
        mine();
        if (open && id0() != 0) {
            if (inner) {
                dropped.set(true);
                end0();
            } else {
                check(abort0(), true);
            }
        }
        open = false;
    }

    private void mine() {
        if (Thread.currentThread() != owner) {
            throw new IllegalStateException("another thread's transaction");
        }
    }

    private static void check(int errno, boolean ends) throws IOException {
        if (errno == ECANCELED) {
            throw new ConflictException("conflict " + conflict0());
        }
        if (errno != 0) {
            throw new IOException(words0(errno, ends));
        }
    }

    private static native int begin0(byte[] dir, int flags);

    private static native int order0(byte[] dir, int flags, byte[] order, long number);

    private static native int next0(byte[] dir, byte[] order, long[] next);

    private static native int reset0(byte[] dir, byte[] order, long next);

    private static native int scoped0(byte[] dir, int flags, byte[][] paths, boolean[] reads);

    private static native int end0();

    private static native int abort0();

    private static native long id0();

    private static native int state0();

    private static native String conflict0();

    private static native String words0(int errno, boolean ends);
}
