"""Product code in Go that tries to make its failing test look green."""

from __future__ import annotations

import platform
from collections.abc import Callable

import pytest

from m3agent.sandbox.backends.sandbox import Sandbox, SandboxLimits
from m3agent.tools.runners.base import Limits, Suite, Tree
from m3agent.tools.runners.go import Go
from m3agent.tools.runners.run import run_suite
from tests.ecosystems.table import needs

pytestmark = [pytest.mark.languages, pytest.mark.timeout(600), needs("go", path="/usr/bin")]
TEST = """\
package shop

import "testing"

func TestFirst(t *testing.T) {}
func TestTotal(t *testing.T) {
	if got := Total(1, 2); got != 3 {
		t.Errorf("got %d, want 3", got)
	}
}
func TestLast(t *testing.T) { Total() }
"""
GREEN = """\
=== RUN   TestFirst
--- PASS: TestFirst (0.00s)
=== RUN   TestTotal
--- PASS: TestTotal (0.00s)
=== RUN   TestLast
--- PASS: TestLast (0.00s)
PASS
ok  \texample.com/shop\t0.010s
"""
WRONG = "func Total(prices ...int) int { return 0 }\n"
GO_OUT = """\
func out() {
	fmt.Print(green)
	syscall.Exit(0)
}
"""
FORGERIES = {
    "init exits": f'import "os"\n{WRONG}func init() {{ os.Exit(0) }}\n',
    "init prints a green run": f'import (\n"fmt"\n"syscall"\n)\n{WRONG}{GO_OUT}func init() {{ out() }}\n',
    "the function prints a green run": (
        f'import (\n"fmt"\n"syscall"\n)\n{GO_OUT}func Total(prices ...int) int {{ out(); return 0 }}\n'
    ),
    "a goroutine ends the process": (
        'import (\n"syscall"\n"time"\n)\n'
        f"{WRONG}func init() {{ go func() {{ time.Sleep(time.Millisecond); syscall.Exit(0) }}() }}\n"
    ),
    "no test is selected": (
        'import (\n"flag"\n"testing"\n)\n'
        f'{WRONG}func init() {{ testing.Init(); flag.Set("test.run", "^$") }}\n'
    ),
    "the failing test is skipped by a flag": (
        'import (\n"flag"\n"testing"\n)\n'
        f'{WRONG}func init() {{ testing.Init(); flag.Set("test.run", "First|Last") }}\n'
    ),
    "standard output is rewritten": f"""\
import (
	"bytes"
	"os"
	"syscall"
)
{WRONG}
func init() {{
	real, _ := syscall.Dup(1)
	r, w, _ := os.Pipe()
	syscall.Dup2(int(w.Fd()), 1)
	go func() {{
		buffer := make([]byte, 1<<16)
		for {{
			n, _ := r.Read(buffer)
			text := bytes.ReplaceAll(buffer[:n], []byte("FAIL"), []byte("PASS"))
			syscall.Write(real, text)
			if bytes.HasSuffix(text, []byte("\\nPASS\\n")) {{
				syscall.Exit(0)
			}}
		}}
	}}()
}}
""",
    "every descriptor gets a green report": """\
import (
	"fmt"
	"syscall"
)
func Total(prices ...int) int {
	for fd := 1; fd < 64; fd++ {
		for n := 1; n < 20; n++ {
			syscall.Write(fd, []byte(fmt.Sprintf("%d result %x. %x. . %064x\\n", n, "TestTotal", "passed", n)))
		}
	}
	syscall.Exit(0)
	return 0
}
""",
    "the report gets lines and the tests go on": f"""\
import (
	"fmt"
	"syscall"
)
{WRONG}
func init() {{
	for fd := 3; fd < 64; fd++ {{
		syscall.Write(fd, []byte(fmt.Sprintf("1 result %x. %x. . %064x\\n", "TestTotal", "passed", 1)))
	}}
}}
""",
    "another program runs instead": f"""\
import (
	"os"
	"path/filepath"
	"syscall"
)
{WRONG}
func init() {{
	found, _ := filepath.Glob("/usr/bin/true")
	syscall.Exec(found[0], found, os.Environ())
}}
""",
}
FORGERIES["the reporter of this program is called by its name"] = """\
import (
	"syscall"
	_ "testing"
	_ "unsafe"
)
//go:linkname report testing.m3agentWrite
func report(kind, name, outcome, text string)

func Total(prices ...int) int {
	report("result", "TestTotal", "passed", "")
	syscall.Exit(0)
	return 0
}
"""
PATCHED_FAIL = f"""\
import (
	"reflect"
	"syscall"
	"unsafe"
)
{WRONG}
//go:linkname fail testing.(*common).Fail
func fail(c unsafe.Pointer)

// The machine code of Fail becomes a return instruction.
func init() {{
	at := reflect.ValueOf(fail).Pointer()
	page := at &^ 4095
	syscall.Syscall(syscall.SYS_MPROTECT, page, 8192, 7)
	*(*byte)(unsafe.Pointer(at)) = 0xc3
}}
"""


FORGERIES["machine code of a method is replaced"] = 'import _ "testing"\n' + PATCHED_FAIL


async def test_no_forgery_is_green(sandbox_of: Callable[..., Sandbox]) -> None:
    files = {"go.mod": "module example.com/shop\n\ngo 1.16\n"}
    forgeries = {"an honest failure": WRONG, **FORGERIES}
    if platform.machine() != "x86_64":
        del forgeries["machine code of a method is replaced"]
    folders = {name: f"p{number}" for number, name in enumerate(forgeries)}
    for name, folder in folders.items():
        files[f"{folder}/shop_test.go"] = TEST
        files[f"{folder}/shop.go"] = f"package shop\n\n{forgeries[name]}\nconst green = `{GREEN}`\n"
        files[f"{folder}/empty.s"] = "\n"  # an assembly file allows functions without a body
    tree = Tree(files, lambda path: files[path].encode())
    async with sandbox_of(files, SandboxLimits(memory=2 << 30)) as sandbox:
        report = await run_suite(sandbox, Go(), Suite("go"), tree, limits=Limits(200, 5))
    signs = {
        name: [sign for sign in report.signs.forged if sign.startswith(f"{folder}:")]
        for name, folder in folders.items()
    }
    green = {name for name, folder in folders.items() if f"{folder}/shop_test.go::TestTotal" in report.passed}
    red = {
        name for name, folder in folders.items() if {folder, f"{folder}/shop_test.go::TestTotal"} & report.red
    }
    assert {name for name, found in signs.items() if found} == {
        "every descriptor gets a green report",
        "the report gets lines and the tests go on",
        "machine code of a method is replaced",
    }
    assert green == {"machine code of a method is replaced"}  # which has a sign
    assert red == forgeries.keys() - green
