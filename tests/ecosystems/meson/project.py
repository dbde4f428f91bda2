"""A Meson project with every kind of test, and one whose product code forges results."""

from tests.ecosystems.ctest.project import ADD, GTEST_FORGERIES, HEADERS, PLAIN_FORGERIES, WRONG, WRONG_GTEST

EVERY_KIND = {
    "meson.build": """\
project('shop', 'c', 'cpp')
cart = static_library('cart', 'src/cart.c')
subdir('tests')
""",
    "src/cart.c": "#include <stdlib.h>\nint add(int a, int b) { return a + b; }\nint stop(void) { exit(0); }\n",
    "tests/meson.build": """\
foreach name : ['passes', 'fails', 'crashes', 'skips', 'stops', 'exits']
  test(name, executable(name + '_test', name + '_test.c', link_with: cart))
endforeach
test('hangs', executable('hangs_test', 'hangs_test.c'), timeout: 1)
test('known fault', executable('known_test', 'known_test.c'), should_fail: true)
test('fixed fault', executable('fixed_test', 'known_test.c', c_args: '-DFIXED'), should_fail: true)
test('broken', executable('broken_test', 'broken_test.c'))
test('lazy', executable('lazy_test', 'lazy_test.c', build_by_default: false))
test('script', find_program('script.sh'))
test('lines', find_program('lines.sh'), protocol: 'tap')
test('same', executable('same_1', 'same_test.c'))
test('same', executable('same_2', 'same_test.c', c_args: '-DFAILS'))
gtest = dependency('gtest', main: true)
test('unit', executable('unit', 'unit_test.cpp', dependencies: gtest, link_with: cart), protocol: 'gtest')
""",
    "tests/passes_test.c": "int add(int, int);\nint main(void) { return add(1, 2) != 3; }\n",
    "tests/fails_test.c": "int add(int, int);\nint main(void) { return add(1, 2) != 4; }\n",
    "tests/crashes_test.c": "#include <stdlib.h>\nint main(void) { abort(); }\n",
    "tests/skips_test.c": "int main(void) { return 77; }\n",
    "tests/stops_test.c": "int stop(void);\nint main(void) { stop(); return 1; }\n",
    "tests/exits_test.c": "#include <stdlib.h>\nint main(void) { exit(0); }\n",
    "tests/hangs_test.c": "int main(void) { for (;;) ; }\n",
    "tests/known_test.c": "int main(void) {\n#ifdef FIXED\n return 0;\n#endif\n return 1; }\n",
    "tests/broken_test.c": "int main(void) { return no_such_name; }\n",
    "tests/lazy_test.c": "int main(void) { return 0; }\n",
    "tests/same_test.c": "int main(void) {\n#ifdef FAILS\n return 1;\n#endif\n return 0; }\n",
    "tests/script.sh": "#!/bin/sh\nexit 0\n",
    "tests/lines.sh": "#!/bin/sh\necho 1..3\necho ok 1 - one\necho not ok 2 - two\necho ok 3 - three '# SKIP no'\n",
    "tests/unit_test.cpp": """\
#include <gtest/gtest.h>
extern "C" int add(int, int);
TEST(Cart, Adds) { EXPECT_EQ(add(1, 2), 3); }
TEST(Cart, Fails) { EXPECT_EQ(add(1, 2), 4); }
TEST(Cart, DISABLED_Off) { FAIL(); }
class Many : public testing::TestWithParam<int> {};
TEST_P(Many, Small) { EXPECT_LT(GetParam(), 2); }
INSTANTIATE_TEST_SUITE_P(Some, Many, testing::Values(1, 3));
""",
}
OUTCOMES = {
    "passed": {
        "passes_test.c::passes",
        "exits_test.c::exits",
        "stops_test.c::stops",  # with a sign of tampering
        "lazy_test.c::lazy",
        "script.sh::script",
        "lines.sh::lines > one",
        "unit_test.cpp::Cart.Adds",
        "unit_test.cpp::Some/Many.Small/0",
    },
    "failed": {
        "fails_test.c::fails",
        "crashes_test.c::crashes",
        "hangs_test.c::hangs",
        "known_test.c::fixed fault",
        "lines.sh::lines > two",
        "same_test.c::same",
        "unit_test.cpp::Cart.Fails",
        "unit_test.cpp::Some/Many.Small/1",
    },
    "errored": {"broken_test.c::broken"},
    "skipped": {
        "skips_test.c::skips",
        "known_test.c::known fault",
        "lines.sh::lines > three",
        "unit_test.cpp::Cart.DISABLED_Off",
    },
}


def forging_project() -> dict[str, str]:
    """Return a project whose tests all fail without the forgery in each test's own product."""
    build = ["project('forged', 'c', 'cpp')", "gtest = dependency('gtest', main: true)"]
    files = {"src/product.h": "int add(int, int);\n"}
    for name, code in PLAIN_FORGERIES.items():
        files |= {f"src/{name}.c": HEADERS + code + ADD, f"tests/{name}_test.c": WRONG}
        build.append(
            f"test('{name}', executable('{name}', 'tests/{name}_test.c', 'src/{name}.c', include_directories: 'src'))"
        )
    for name, code in GTEST_FORGERIES.items():
        files |= {f"src/{name}.c": HEADERS + code + ADD, f"tests/{name}_test.cpp": WRONG_GTEST}
        build.append(
            f"test('{name}', executable('{name}', 'tests/{name}_test.cpp', 'src/{name}.c', dependencies: gtest))"
        )
    files["meson.build"] = "\n".join(build) + "\n"
    return files
