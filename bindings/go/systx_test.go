package systx

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A new directory below the guarded one that SYSTX_TEST_DIR names.
func directory(t *testing.T) string {
	t.Helper()
	guarded := os.Getenv("SYSTX_TEST_DIR")
	if guarded == "" {
		t.Skip("SYSTX_TEST_DIR names no guarded directory")
	}
	dir, err := os.MkdirTemp(guarded, "go")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func write(t *testing.T, path string, value int) {
	t.Helper()
	if err := os.WriteFile(path, []byte(strconv.Itoa(value)), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text))
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Busy makes goroutines that have to be preempted, and collections of garbage, until the test's end.
func busy(t *testing.T) {
	var stop atomic.Bool
	var all sync.WaitGroup
	for n := 0; n < 2; n++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for !stop.Load() {
				for i := 0; i < 1e6; i++ {
				}
			}
		}()
	}
	all.Add(1)
	go func() {
		defer all.Done()
		for !stop.Load() {
			_ = make([]byte, 1<<20)
			runtime.GC()
		}
	}()
	t.Cleanup(func() { stop.Store(true); all.Wait() })
}

func TestWhatIsInsideIsOfThisGoroutineAlone(t *testing.T) {
	dir := directory(t)
	busy(t)
	name := filepath.Join(dir, "new")
	err := Run(func(tx *Tx) error {
		if tx.ID() == 0 || tx.Status().State != Open {
			t.Error("not in a transaction")
		}
		write(t, name, 1)
		if !there(name) {
			t.Error("its own change is not there")
		}
		// More goroutines than threads: each thread of the program has one.
		var others sync.WaitGroup
		for n := 0; n < 32; n++ {
			others.Add(1)
			go func() {
				defer others.Done()
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				if there(name) {
					t.Error("another thread is in the transaction")
				}
			}()
		}
		others.Wait()
		return tx.Outside(func() error {
			if there(name) {
				t.Error("it is there outside")
			}
			return nil
		})
	}, In(dir))
	if err != nil || !there(name) {
		t.Fatal(err)
	}
}

func TestThreadsThatAreMadeMeanwhileAreOutside(t *testing.T) {
	dir := directory(t)
	name := filepath.Join(dir, "new")
	before := namespace(t, os.Getpid())
	err := Run(func(*Tx) error {
		write(t, name, 1)
		me := syscall.Gettid()
		if namespace(t, me) == before || me == os.Getpid() {
			t.Error("the transaction has no thread of its own")
		}
		// A goroutine that keeps its thread until its end takes it along: new ones have to be made.
		for n := 0; n < 16; n++ {
			done := make(chan bool)
			go func() {
				runtime.LockOSThread()
				done <- there(name)
			}()
			if <-done {
				t.Error("a new thread is in the transaction")
			}
		}
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, task := range tasks {
			tid, _ := strconv.Atoi(task.Name())
			if tid != me && namespace(t, tid) == namespace(t, me) {
				t.Error("another thread in the mount namespace")
			}
		}
		return nil
	}, In(dir))
	if err != nil {
		t.Fatal(err)
	}
}

// The mount namespace of a thread; a thread that has ended is in none.
func namespace(t *testing.T, tid int) string {
	t.Helper()
	ns, err := os.Readlink(fmt.Sprintf("/proc/self/task/%d/ns/mnt", tid))
	if err != nil {
		return fmt.Sprint("none of ", tid)
	}
	return ns
}

func TestErrorsAndPanicsDropIt(t *testing.T) {
	dir := directory(t)
	name := filepath.Join(dir, "new")
	wrong := errors.New("wrong")
	if err := Run(func(*Tx) error { write(t, name, 1); return wrong }, In(dir)); err != wrong {
		t.Error(err)
	}
	func() {
		defer func() {
			if r := recover(); r == nil || !strings.HasPrefix(fmt.Sprint(r), "wrong") {
				t.Error(r)
			}
		}()
		Run(func(*Tx) error { write(t, name, 1); panic(wrong) }, In(dir))
	}()
	ended := make(chan bool)
	go func() {
		defer close(ended)
		Run(func(*Tx) error { write(t, name, 1); runtime.Goexit(); return nil }, In(dir))
		t.Error("the goroutine goes on")
	}()
	<-ended
	if there(name) {
		t.Error("it is there")
	}
	err := Run(func(*Tx) error { return nil }, In("/proc"))
	if !errors.Is(err, syscall.ENOTTY) {
		t.Error(err)
	}
}

func TestALostConflictIsTold(t *testing.T) {
	dir := directory(t)
	a := filepath.Join(dir, "a")
	write(t, a, 1)
	runs := 0
	lose := func(*Tx) error {
		runs++
		if _, err := read(a); err != nil {
			return err
		}
		if runs == 1 {
			// From another thread: it wins.
			done := make(chan error)
			go func() { done <- os.WriteFile(a, []byte("2"), 0o644) }()
			if err := <-done; err != nil {
				return err
			}
		}
		return os.WriteFile(a, []byte("3"), 0o644)
	}
	err := Run(lose, In(dir), Attempts(1))
	var told *Error
	if !errors.Is(err, syscall.ECANCELED) || !errors.As(err, &told) || !strings.HasSuffix(told.Status.Path, "/a") {
		t.Fatal(err)
	}
	runs = 0
	if err := Run(lose, In(dir)); err != nil || runs != 2 {
		t.Fatal(err, runs)
	}
	if n, err := read(a); n != 3 || err != nil {
		t.Fatal(n, err)
	}
}

func TestTheWorkingDirectoryIsTheCallers(t *testing.T) {
	dir := directory(t)
	before, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chdir(dir); err != nil {
		t.Fatal(err)
	}
	defer os.Chdir(before)
	for n := 0; n < 3; n++ {
		// Twice the same thread: where it went before does not matter.
		err := Run(func(*Tx) error {
			name := fmt.Sprint("relative", n)
			if err := os.WriteFile(name, nil, 0o644); err != nil {
				return err
			}
			return syscall.Chdir("/")
		})
		if err != nil || !there(fmt.Sprint("relative", n)) {
			t.Fatal(err)
		}
	}
}

func TestProcessesThatAreStartedInsideJoin(t *testing.T) {
	dir := directory(t)
	name := filepath.Join(dir, "child")
	err := Run(func(tx *Tx) error {
		out, err := exec.Command("sh", "-c", "echo from a child > "+name).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if !there(name) {
			t.Error("the child's file is not there")
		}
		return tx.Outside(func() error {
			if there(name) {
				t.Error("the child was outside")
			}
			return nil
		})
	}, In(dir))
	if err != nil || !there(name) {
		t.Fatal(err)
	}
}

func TestNumbersAreUsedUpByCommitsAndMissingOnesAreNamed(t *testing.T) {
	dir := directory(t)
	file := filepath.Join(dir, "file")
	name := filepath.Base(dir)
	put := func(number uint64) error {
		return Run(func(*Tx) error {
			return os.WriteFile(file, []byte(strconv.FormatUint(number, 10)), 0o644)
		}, In(dir), Ordered(name, number))
	}
	if err := put(0); err != nil {
		t.Fatal(err)
	}
	if err := put(0); !errors.Is(err, syscall.EEXIST) {
		t.Fatalf("used up: %v", err)
	}
	Patience(0)
	err := put(2)
	Patience(30 * time.Second)
	var told *Error
	if !errors.Is(err, syscall.ETIMEDOUT) || !errors.As(err, &told) || !strings.Contains(told.Status.Words, "number 1") {
		t.Fatalf("nobody has number 1: %v", err)
	}
	if value, err := read(file); err != nil || value != 0 {
		t.Fatalf("number 2 was dropped: %d, %v", value, err)
	}
	next := func(want uint64) {
		t.Helper()
		if got, err := NextOrder(dir, name); err != nil || got != want {
			t.Fatalf("comes next: %d, %v, not %d", got, err, want)
		}
	}
	next(1)
	if err := ResetOrder(dir, name, 2); err != nil {
		t.Fatal(err)
	}
	next(2)
	if err := put(2); err != nil {
		t.Fatal(err)
	}
	if value, err := read(file); err != nil || value != 2 {
		t.Fatalf("number 2: %d, %v", value, err)
	}
	if err := put(1); !errors.Is(err, syscall.EEXIST) {
		t.Fatalf("over: %v", err)
	}
	next(3)
	if err := ResetOrder(dir, name, 0); err != nil {
		t.Fatal(err)
	}
	next(0)
}

func TestNoUpdateIsLostUnderPreemptionAndCollection(t *testing.T) {
	dir := directory(t)
	busy(t)
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, a, 1000)
	write(t, b, 0)
	const workers, times = 4, 25
	var all sync.WaitGroup
	for n := 0; n < workers; n++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := 0; i < times; i++ {
				err := Run(func(*Tx) error {
					x, err := read(a)
					if err != nil {
						return err
					}
					y, err := read(b)
					if err != nil {
						return err
					}
					if x+y != 1000 {
						t.Errorf("%d and %d are of two moments", x, y)
					}
					if err := os.WriteFile(a, []byte(strconv.Itoa(x-1)), 0o644); err != nil {
						return err
					}
					// Preempted here, or its stack moved, it is where it was.
					grow(64)
					runtime.Gosched()
					return os.WriteFile(b, []byte(strconv.Itoa(y+1)), 0o644)
				}, In(dir))
				if err != nil {
					t.Error(err)
				}
			}
		}()
	}
	all.Wait()
	x, _ := read(a)
	y, _ := read(b)
	if x != 1000-workers*times || y != workers*times {
		t.Fatal(x, y)
	}
}

func grow(n int) byte {
	var room [1 << 10]byte
	if n == 0 {
		return room[0]
	}
	room[n] = grow(n - 1)
	return room[n]
}

func TestThreadsAreUsedAgainAndNotManyAreKept(t *testing.T) {
	dir := directory(t)
	tids := map[int]bool{}
	for n := 0; n < 20; n++ {
		if err := Run(func(*Tx) error { tids[syscall.Gettid()] = true; return nil }, In(dir)); err != nil {
			t.Fatal(err)
		}
	}
	if len(tids) != 1 {
		t.Errorf("%d threads for one transaction at a time", len(tids))
	}
	var all sync.WaitGroup
	var begun sync.WaitGroup
	begun.Add(2 * kept)
	for n := 0; n < 2*kept; n++ {
		all.Add(1)
		go func() {
			defer all.Done()
			err := Run(func(*Tx) error { begun.Done(); begun.Wait(); return nil }, In(dir), ReadOnly())
			if err != nil {
				t.Error(err)
			}
		}()
	}
	all.Wait()
	idle.Lock()
	defer idle.Unlock()
	if len(idle.workers) != kept {
		t.Errorf("%d are kept", len(idle.workers))
	}
}
