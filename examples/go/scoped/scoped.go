// Moves 1 from file a to file b of a guarded directory, N times, and never has to try again: scoped DIR N
package main

import (
	"log"
	"os"
	"strconv"
	"systx"
)

func add(name string, n int) error {
	text, _ := os.ReadFile(name)
	value, err := strconv.Atoi(string(text))
	if err == nil {
		err = os.WriteFile(name, []byte(strconv.Itoa(value+n)), 0o644)
	}
	return err
}
func main() {
	a, b := os.Args[1]+"/a", os.Args[1]+"/b"
	scope := systx.Scope(systx.Write(a), systx.Write(b))
	for i, _ := strconv.Atoi(os.Args[2]); i > 0; i-- {
		if err := systx.Run(func(t *systx.Tx) error {
			if err := add(a, -1); err != nil {
				return err
			}
			return add(b, 1)
		}, systx.In(os.Args[1]), scope, systx.Attempts(1)); err != nil {
			log.Fatal(err)
		}
	}
}
