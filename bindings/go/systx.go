// Package systx has system transactions for functions, on directories that `systx mount` guards: what a
// function does below the directory happens at once or not at all, and nobody else's changes come in between.
//
//	err := systx.Run(func(t *systx.Tx) error {
//		return os.WriteFile("/srv/accounts/a", sum, 0o644)
//	}, systx.In("/srv/accounts"))
//
// It needs libsystx, which is found by pkg-config (`scripts/install-lib`). See docs/LIBRARY.md.
package systx

/*
#cgo pkg-config: systx
#include <stdlib.h>
#include <systx.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"syscall"
	"time"
	"unsafe"
)

// Option is how Run begins a transaction.
type Option func(*options)

type options struct {
	dir      string
	flags    C.uint
	attempts int
	order    *place
	scope    []Path
}

// A place in an order.
type place struct {
	name   string
	number uint64
}

// In names the guarded directory, or anything below it. Without it: that of the environment variable
// SYSTX_DIR, or else the working directory.
func In(dir string) Option { return func(o *options) { o.dir = dir } }

// ReadOnly commits nothing; all that is read is of one moment.
func ReadOnly() Option { return func(o *options) { o.flags |= C.SYSTX_READ_ONLY } }

// Snapshot isolates as snapshots do, instead of serializably.
func Snapshot() Option { return func(o *options) { o.flags |= C.SYSTX_SNAPSHOT } }

// Relaxed has the commit not wait for the disk: it is durable a moment later, in the order of the commits.
func Relaxed() Option { return func(o *options) { o.flags |= C.SYSTX_RELAXED } }

// NonBlocking has Run fail with syscall.EAGAIN where the begin of an attempt would wait for others: for a caller that
// holds a lock.
func NonBlocking() Option { return func(o *options) { o.flags |= C.SYSTX_NONBLOCK } }

// Attempts bounds how often the function is run; without it, Run goes on until it has not lost. Age is kept,
// so few attempts are needed.
func Attempts(n int) Option { return func(o *options) { o.attempts = n } }

// Ordered gives the transaction a place in an order: those that name the same one commit one after another, with rising
// numbers from 0 on, whenever and by whichever program of the user they are begun, and of two that are in conflict the lower
// number wins. They run side by side, and the end of Run waits for the lower numbers (Patience): syscall.ETIMEDOUT, and the
// Status of the Error names the number that did not come. A number is used up by a commit, also of nothing.
func Ordered(name string, number uint64) Option {
	return func(o *options) { o.order = &place{name, number} }
}

// Path is a path of a scope, and what it is for.
type Path struct {
	path  string
	reads bool
}

// Write is a path that is written, made or removed.
func Write(path string) Path { return Path{path, false} }

// Read is a path that is only read.
func Read(path string) Path { return Path{path, true} }

// Scope declares what the transaction will touch, for callers that cannot try again: it waits until nobody else has declared the same
// (Patience: syscall.ETIMEDOUT, or EDEADLK if who has it sleeps), and then loses to no transaction on these paths, however old that is; the
// other one loses. A path is one object: a file and its name; a directory: which names are in it; what is not there: its
// name. Not together with Ordered or ReadOnly.
func Scope(paths ...Path) Option { return func(o *options) { o.scope = paths } }

// NextOrder tells which number comes next in an order on the guarded directory that holds dir: all lower ones are committed, whatever ended
// since; "" is as without In.
func NextOrder(dir, name string) (uint64, error) {
	var next C.uint64_t
	err := onOrder(dir, name, func(where, order *C.char) error {
		if r, err := C.systx_next_order(where, order, &next); r != 0 {
			return failed("systx_next_order", err)
		}
		return nil
	})
	return uint64(next), err
}

// ResetOrder has `next` come next in an order on the guarded directory that holds dir, 0 ends the order; "" is as without In.
// syscall.EBUSY: transactions of that order are open.
func ResetOrder(dir, name string, next uint64) error {
	return onOrder(dir, name, func(where, order *C.char) error {
		if r, err := C.systx_reset_order(where, order, C.uint64_t(next)); r != 0 {
			return failed("systx_reset_order", err)
		}
		return nil
	})
}

func onOrder(dir, name string, ask func(where, order *C.char) error) error {
	var o options
	if dir != "" {
		In(dir)(&o)
	}
	if err := o.absolute(); err != nil {
		return err
	}
	// The thread needs what it needs for a transaction.
	return onThread(func() (error, bool) {
		where, free := o.place()
		defer free()
		order := C.CString(name)
		defer C.free(unsafe.Pointer(order))
		return ask(where, order), true
	})
}

// Patience says how long ends of transactions wait for processes that were started inside, and for lower numbers of their order, and begins
// for their scope, in the whole program; at first 30 seconds.
func Patience(limit time.Duration) {
	ms := limit.Milliseconds()
	if ms < 0 {
		ms = 0
	} else if ms > math.MaxUint32 {
		ms = math.MaxUint32
	}
	C.systx_patience(C.uint(ms))
}

// State is where a transaction is.
type State uint32

// The states of a transaction.
const (
	None      = State(C.SYSTX_NONE)
	Open      = State(C.SYSTX_OPEN)
	Lost      = State(C.SYSTX_LOST)
	Committed = State(C.SYSTX_COMMITTED)
	Aborted   = State(C.SYSTX_ABORTED)
	Failed    = State(C.SYSTX_FAILED)
)

// Status tells of a transaction.
type Status struct {
	State    State
	Retries  uint32 // how often it has lost
	ID       uint64 // as `systx log` shows it
	Opponent uint64 // the transaction it lost to; 0: a program outside, or it has not lost
	Path     string // what the conflict was about
	Words    string // the opponent, or why it failed
}

// Error is a call of libsystx that failed: nothing was committed. errors.Is compares with its Errno
// (docs/LIBRARY.md lists them); syscall.ECANCELED is a lost conflict.
type Error struct {
	Call   string
	Errno  syscall.Errno
	Status Status
}

func (e *Error) Error() string {
	about := ""
	if e.Status.Path != "" {
		about += " on " + e.Status.Path
	}
	if e.Status.Words != "" {
		about += " with " + e.Status.Words
	}
	if e.Errno == syscall.ECANCELED {
		return fmt.Sprintf("%s: lost a conflict%s", e.Call, about)
	}
	if e.tells() {
		return fmt.Sprintf("%s: %v: %s", e.Call, e.Errno, e.Status.Words)
	}
	return fmt.Sprintf("%s: %v", e.Call, e.Errno)
}

// Whether the words of the status are about this error: after one of a begin they may be about another transaction.
func (e *Error) tells() bool {
	if e.Status.Words == "" {
		return false
	}
	switch e.Errno {
	case syscall.EBUSY, syscall.ETIMEDOUT, syscall.EDEADLK, syscall.EEXIST, syscall.EOPNOTSUPP:
		return true
	}
	return e.Call == "xend"
}

// Unwrap gives the Errno.
func (e *Error) Unwrap() error { return e.Errno }

// Tx is an open transaction. Its methods are for the goroutine that Run calls the function on.
type Tx struct{}

// Run calls fn in a transaction, and again as long as it loses a conflict; when it returns nil, what fn did
// below the directory is durable and visible. An error of fn, or a panic, drops the transaction. What fn does
// beside the guarded directory, in memory too, happens at each attempt.
//
// fn runs on a goroutine with a thread of its own. Only what this goroutine does is in the transaction, and
// processes that it starts, for whose end Run waits (Patience); other goroutines, those that it starts
// included, are outside. The working directory is the caller's. A Run inside of fn is another transaction: hand
// the Tx on instead.
func Run(fn func(t *Tx) error, opts ...Option) error {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if err := o.absolute(); err != nil {
		return err
	}
	return onThread(func() (error, bool) { return o.run(fn) })
}

func (o *options) absolute() error {
	scope := make([]Path, len(o.scope))
	for i, p := range o.scope {
		path, err := filepath.Abs(p.path)
		if err != nil {
			return err
		}
		scope[i] = Path{path, p.reads}
	}
	o.scope = scope
	if o.dir == "" {
		return nil
	}
	dir, err := filepath.Abs(o.dir)
	o.dir = dir
	return err
}

// The scope in the memory of C.
func (o *options) paths() (scope *C.struct_systx_path, free func()) {
	scope = (*C.struct_systx_path)(C.calloc(C.size_t(len(o.scope)+1), C.sizeof_struct_systx_path))
	all := unsafe.Slice(scope, len(o.scope))
	for i, p := range o.scope {
		all[i].path = C.CString(p.path)
		if p.reads {
			all[i].access = C.SYSTX_READ
		}
	}
	return scope, func() {
		for _, p := range all {
			C.free(unsafe.Pointer(p.path))
		}
		C.free(unsafe.Pointer(scope))
	}
}

// The directory for C.
func (o *options) place() (dir *C.char, free func()) {
	if o.dir == "" {
		return nil, func() {}
	}
	dir = C.CString(o.dir)
	return dir, func() { C.free(unsafe.Pointer(dir)) }
}

// Runs on a locked thread. False: the thread may not be outside of a transaction.
func (o *options) run(fn func(t *Tx) error) (error, bool) {
	dir, free := o.place()
	defer free()
	// In the memory of C, since it points there.
	how := (*C.struct_systx_begin)(C.calloc(1, C.sizeof_struct_systx_begin))
	defer C.free(unsafe.Pointer(how))
	scope, release := o.paths()
	defer release()
	how.scope, how.paths = scope, C.uint32_t(len(o.scope))
	if o.order != nil {
		how.order = C.CString(o.order.name)
		how.number = C.uint64_t(o.order.number)
		defer C.free(unsafe.Pointer(how.order))
	}
	for n, flags := 1, o.flags; ; n, flags = n+1, o.flags|C.SYSTX_RETRY {
		how.flags = C.uint32_t(flags)
		if r, err := C.systx_begin_with(dir, how); r != 0 {
			return failed("systx_begin_with", err), false
		}
		err, clean := o.attempt(fn)
		// What a transaction does that has lost means nothing, errors and panics included.
		if err == nil || !clean || status().State != Lost || n == o.attempts {
			return err, clean
		}
	}
}

// One attempt, from after its begin to its end.
func (o *options) attempt(fn func(t *Tx) error) (err error, clean bool) {
	ended := false
	defer func() {
		// It panics, or ends its goroutine.
		if !ended {
			lost := status()
			r, _ := C.xabort()
			if lost.State == Lost && recover() != nil {
				err, clean = &Error{Call: "xend", Errno: syscall.ECANCELED, Status: lost}, r == 0
			}
		}
	}()
	err = fn(&Tx{})
	ended = true
	if err != nil {
		lost := status()
		r, _ := C.xabort()
		if lost.State == Lost {
			err = &Error{Call: "xend", Errno: syscall.ECANCELED, Status: lost}
		}
		return err, r == 0
	}
	if r, e := C.xend(); r != 0 {
		err = failed("xend", e)
		if C.xid() != 0 {
			r, _ := C.xabort()
			return err, r == 0
		}
		return err, errors.Is(err, syscall.ECANCELED)
	}
	return nil, true
}

// ID is the transaction's number, as `systx log` shows it.
func (t *Tx) ID() uint64 { return uint64(C.xid()) }

// Status tells of the transaction.
func (t *Tx) Status() Status { return status() }

// Outside calls fn outside of the transaction, which stays open: for logs, or answers to clients.
func (t *Tx) Outside(fn func() error) (err error) {
	id, e := C.xpause()
	if id == 0 {
		return failed("xpause", e)
	}
	defer func() {
		if r, e := C.xresume(id); r != 0 && err == nil {
			err = failed("xresume", e)
		}
	}()
	return fn()
}

func status() Status {
	var s C.struct_systx_status
	if r, _ := C.xstatus(&s); r != 0 {
		return Status{}
	}
	return Status{
		State: State(s.state), Retries: uint32(s.retries), ID: uint64(s.id), Opponent: uint64(s.opponent),
		Path: C.GoString(&s.path[0]), Words: C.GoString(&s.words[0]),
	}
}

func failed(call string, err error) error {
	errno, known := err.(syscall.Errno)
	if !known {
		errno = syscall.EIO
	}
	return &Error{Call: call, Errno: errno, Status: status()}
}
