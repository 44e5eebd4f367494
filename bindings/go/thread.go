package systx

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
)

// A transaction is a mount namespace that a thread enters. Such a thread must carry no other goroutine, and no
// thread may be made from it: goroutines are locked to threads (the runtime then makes new threads from a clean
// one) and never let go of them. The thread of a goroutine that ends so ends with it. Some threads are kept,
// since the first transaction of a thread costs it a copy of the mount namespace.

// How many threads without work are kept.
const kept = 8

const pathOnly = 0x200000 // O_PATH, which package syscall lacks

var idle struct {
	sync.Mutex
	workers []chan *job
}

type job struct {
	// Its result, and whether the thread can be used again.
	run  func() (error, bool)
	cwd  int
	done chan outcome
}

type outcome struct {
	err error
	// A panic to be raised where Run was called, or the end of the goroutine.
	panicked any
	goexit   bool
}

// onThread calls run on a thread for transactions, as if it was called here.
func onThread(run func() (error, bool)) error {
	cwd, err := syscall.Open(".", pathOnly|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: ".", Err: err}
	}
	defer syscall.Close(cwd)
	j := &job{run: run, cwd: cwd, done: make(chan outcome, 1)}
	worker() <- j
	o := <-j.done
	switch {
	case o.panicked != nil:
		panic(o.panicked)
	case o.goexit:
		runtime.Goexit()
	}
	return o.err
}

func worker() chan<- *job {
	idle.Lock()
	defer idle.Unlock()
	if n := len(idle.workers); n > 0 {
		w := idle.workers[n-1]
		idle.workers = idle.workers[:n-1]
		return w
	}
	w := make(chan *job, 1)
	go work(w)
	return w
}

func work(w chan *job) {
	runtime.LockOSThread()
	if syscall.Gettid() == os.Getpid() {
		// /proc/self speaks of the main thread: leave it alone. While this one has it, the other gets another.
		other := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(other)
			serve(w)
		}()
		<-other
		runtime.UnlockOSThread()
		return
	}
	serve(w)
}

func serve(w chan *job) {
	// A working directory of its own, before it goes to the caller's.
	alone := syscall.Unshare(syscall.CLONE_FS)
	for j := range w {
		err := alone
		if err == nil {
			err = syscall.Fchdir(j.cwd)
		}
		if err != nil {
			j.done <- outcome{err: fmt.Errorf("systx: a thread with a working directory of its own: %w", err)}
			return
		}
		j.do(w)
	}
}

func (j *job) do(w chan *job) {
	o := outcome{goexit: true}
	clean := false
	defer func() {
		if r := recover(); r != nil {
			o = outcome{panicked: fmt.Sprintf("%v\n\nin a transaction:\n%s", r, debug.Stack())}
		}
		again := clean && keep(w)
		j.done <- o
		if !again {
			// Ends the goroutine, and so the thread.
			runtime.Goexit()
		}
	}()
	o.err, clean = j.run()
	o.goexit = false
}

func keep(w chan *job) bool {
	idle.Lock()
	defer idle.Unlock()
	if len(idle.workers) >= kept {
		return false
	}
	idle.workers = append(idle.workers, w)
	return true
}
