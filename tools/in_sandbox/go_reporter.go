// m3agent compiles this file into Go's own package testing, for one build and without a change to any file.
//
// It writes a line for each test that begins or ends: number, kind, and in hexadecimal name, outcome, text and code. The code
// needs a key that the linker puts into the program. So text that a program under test prints is never a result.

package testing

import (
	"crypto/sha256"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Set by the linker.
var m3agentKey string

var (
	m3agentLock   sync.Mutex
	m3agentNumber int
	m3agentFile   *os.File
)

const m3agentMostText = 16 << 10

func init() {
	number, err := strconv.Atoi(os.Getenv("M3AGENT_REPORT"))
	// A program that a test starts, often this one, must not write into the report.
	os.Unsetenv("M3AGENT_REPORT")
	if err == nil {
		syscall.CloseOnExec(number)
		m3agentFile = os.NewFile(uintptr(number), "report")
	}
}

func m3agentWrite(kind, name, outcome, text string) {
	m3agentLock.Lock()
	defer m3agentLock.Unlock()
	if m3agentFile == nil {
		return
	}
	if len(text) > m3agentMostText {
		text = text[:m3agentMostText]
	}
	m3agentNumber++
	body := fmt.Sprintf("%d %s %x. %x. %x.", m3agentNumber, kind, name, outcome, text)
	code := sha256.Sum256([]byte(m3agentKey + body + m3agentKey))
	fmt.Fprintf(m3agentFile, "%s %x\n", body, code)
}

func m3agentStart(name string) {
	if name != "" { // the parent of all tests has no name
		m3agentWrite("start", name, "", "")
	}
}

func m3agentResult(c *common) {
	if c.name == "" {
		return
	}
	outcome := "passed"
	if c.Failed() {
		outcome = "failed"
	} else if c.Skipped() {
		outcome = "skipped"
	}
	c.mu.RLock()
	text := string(c.output)
	c.mu.RUnlock()
	m3agentWrite("result", c.name, outcome, text)
}

func m3agentExample(eg *InternalExample, stdout string, passed bool) {
	if passed {
		m3agentWrite("result", eg.Name, "passed", "")
	} else {
		m3agentWrite("result", eg.Name, "failed", "got:\n"+stdout+"\nwant:\n"+eg.Output)
	}
}

func m3agentDone() {
	m3agentWrite("done", "", "", "")
}

// m3agentRunTests runs the tests, and tests that must fail before and after them. Their names depend on the key.
func m3agentRunTests(matchString func(pat, str string) (bool, error), tests []InternalTest, deadline time.Time) (ran, ok bool) {
	m3agentCanaries("before", deadline)
	ran, ok = runTests(matchString, tests, deadline)
	m3agentCanaries("after", deadline)
	return ran, ok
}

func m3agentCanaries(when string, deadline time.Time) {
	silent, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	stdout := os.Stdout
	os.Stdout = silent
	defer func() {
		os.Stdout = stdout
		silent.Close()
	}()
	canaries := []func(t *T){
		func(t *T) { t.Fail() },
		func(t *T) { t.Error("it must fail") },
		func(t *T) { t.Fatal("it must fail") },
		func(t *T) {
			if !reflect.DeepEqual([]string{when}, []string{m3agentKey}) {
				t.Errorf("%q", when)
			}
		},
		func(t *T) { t.Run("sub", func(t *T) { t.FailNow() }) },
	}
	var tests []InternalTest
	for i, canary := range canaries {
		name := sha256.Sum256([]byte(m3agentKey + when + strconv.Itoa(i)))
		tests = append(tests, InternalTest{fmt.Sprintf("Test%X", name[:6]), canary})
	}
	runTests(func(_, _ string) (bool, error) { return true, nil }, tests, deadline)
}
