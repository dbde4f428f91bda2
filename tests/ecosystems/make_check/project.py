"""An automake project with every kind of test, and one whose product code forges results."""

from tests.ecosystems.ctest.project import ADD, HEADERS, PLAIN_FORGERIES, WRONG

CONFIGURE = """\
AC_INIT([shop], [1])
AM_INIT_AUTOMAKE([foreign subdir-objects])
AC_PROG_CC
AC_PROG_RANLIB
AC_CONFIG_FILES([Makefile tests/Makefile])
AC_OUTPUT
"""
EVERY_KIND = {
    "configure.ac": CONFIGURE,
    "Makefile.am": "SUBDIRS = . tests\nnoinst_LIBRARIES = libcart.a\nlibcart_a_SOURCES = cart.c\n",
    "cart.c": "#include <stdlib.h>\nint add(int a, int b) { return a + b; }\nint stop(void) { exit(0); }\n",
    "tests/Makefile.am": """\
check_PROGRAMS = passes fails crashes skips hangs stops exits known fixed broken
passes_SOURCES = passes_test.c
LDADD = ../libcart.a
XFAIL_TESTS = known fixed
AM_TESTS_ENVIRONMENT = CART=ready; export CART;
EXTRA_DIST = script.sh
TESTS = $(check_PROGRAMS) script.sh absent.sh
""",
    "tests/passes_test.c": "#include <stdlib.h>\nint add(int, int);\n"
    'int main(void) { return add(1, 2) != 3 || !getenv("srcdir"); }\n',
    "tests/fails.c": "#include <stdio.h>\nint add(int, int);\n"
    'int main(void) { puts("no luck"); return add(1, 2) != 4; }\n',
    "tests/crashes.c": "#include <stdlib.h>\nint main(void) { abort(); }\n",
    "tests/skips.c": "int main(void) { return 77; }\n",
    "tests/hangs.c": "int main(void) { for (;;) ; }\n",
    "tests/stops.c": "int stop(void);\nint main(void) { stop(); return 1; }\n",
    "tests/exits.c": "#include <stdlib.h>\nint main(void) { exit(0); }\n",
    "tests/known.c": "int main(void) { return 1; }\n",
    "tests/fixed.c": "int main(void) { return 0; }\n",
    "tests/broken.c": "int main(void) { return no_such_name; }\n",
    "tests/script.sh": '#!/bin/sh\ntest "$CART" = ready\n',
}
OUTCOMES = {
    "passed": {
        "passes_test.c::passes",
        "exits.c::exits",
        "stops.c::stops",  # with a sign of tampering
        "script.sh::script.sh",
    },
    "failed": {"fails.c::fails", "crashes.c::crashes", "hangs.c::hangs", "fixed.c::fixed"},
    "errored": {"broken.c::broken", "Makefile.am::absent.sh"},
    "skipped": {"skips.c::skips", "known.c::known"},
}


def forging_project() -> dict[str, str]:
    """Return a project whose tests all fail without the forgery in each test's own product."""
    files = {
        "configure.ac": CONFIGURE,
        "Makefile.am": "SUBDIRS = tests\n",
        "src/product.h": "int add(int, int);\n",
    }
    lines = [f"check_PROGRAMS = {' '.join(PLAIN_FORGERIES)}", "AM_CPPFLAGS = -I$(srcdir)/../src"]
    for name, code in PLAIN_FORGERIES.items():
        files |= {f"src/{name}.c": HEADERS + code + ADD, f"tests/{name}_test.c": WRONG}
        lines.append(f"{name}_SOURCES = {name}_test.c ../src/{name}.c")
    files["tests/Makefile.am"] = "\n".join([*lines, "TESTS = $(check_PROGRAMS)"]) + "\n"
    return files
