// Appends FIRST, FIRST + STEP, ... below END to a log; all programs' numbers come in order: ordered DIR FIRST STEP END
package main

import (
	"fmt"
	"log"
	"os"
	"strconv"
	"systx"
)

func main() {
	var args [3]uint64
	for i := range args {
		args[i], _ = strconv.ParseUint(os.Args[i+2], 10, 64)
	}
	for n := args[0]; n < args[2]; n += args[1] {
		if err := systx.Run(func(t *systx.Tx) error {
			file, err := os.OpenFile(os.Args[1]+"/log", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
			if err != nil {
				return err
			}
			defer file.Close()
			_, err = fmt.Fprintln(file, n)
			return err
		}, systx.In(os.Args[1]), systx.Ordered("log", n)); err != nil {
			log.Fatal(err)
		}
	}
}
