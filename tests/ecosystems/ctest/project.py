"""A CMake project with every kind of test, and one whose product code forges results."""

EVERY_KIND = {
    "CMakeLists.txt": """\
cmake_minimum_required(VERSION 3.20)
project(shop C CXX)
option(SHOP_BUILD_TESTS "Build the tests" OFF)
add_library(cart STATIC src/cart.c)
target_include_directories(cart PUBLIC include)
if(SHOP_BUILD_TESTS)
  enable_testing()
  add_subdirectory(tests)
endif()
""",
    "include/cart.h": """\
#ifdef __cplusplus
extern "C" {
#endif
int add(int, int);
int stop(void);
#ifdef __cplusplus
}
#endif
""",
    "src/cart.c": """\
#include "cart.h"
#include <stdlib.h>
int add(int a, int b) { return a + b; }
int stop(void) { exit(0); }
""",
    "tests/CMakeLists.txt": """\
foreach(name passes fails crashes skips hangs stops exits expected late_exit)
  add_executable(${name}_test ${name}_test.c)
  target_link_libraries(${name}_test cart)
endforeach()
foreach(name passes fails crashes skips hangs stops exits late_exit)
  add_test(NAME ${name} COMMAND ${name}_test)
endforeach()
set_tests_properties(skips PROPERTIES SKIP_RETURN_CODE 77)
add_test(NAME expected COMMAND expected_test)
set_tests_properties(expected PROPERTIES WILL_FAIL TRUE)
add_test(NAME "said (it)" COMMAND passes_test)
set_tests_properties("said (it)" PROPERTIES PASS_REGULAR_EXPRESSION "all is well")
add_test(NAME off COMMAND passes_test)
set_tests_properties(off PROPERTIES DISABLED TRUE)
add_executable(broken_test broken_test.c)
add_test(NAME broken COMMAND broken_test)
add_test(NAME missing COMMAND ./no_such_program)
add_executable(lazy_test EXCLUDE_FROM_ALL lazy_test.c)
add_test(NAME lazy COMMAND lazy_test)
add_test(NAME script COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/script.sh)
add_executable(needs_setup passes_test.c)
target_link_libraries(needs_setup cart)
add_test(NAME setup COMMAND sh -c "exit 1")
add_test(NAME needs_setup COMMAND needs_setup)
set_tests_properties(setup PROPERTIES FIXTURES_SETUP F)
set_tests_properties(needs_setup PROPERTIES FIXTURES_REQUIRED F)
find_package(GTest REQUIRED)
include(GoogleTest)
add_executable(unit_tests unit_test.cpp more_test.cpp)
target_link_libraries(unit_tests cart GTest::gtest_main)
add_test(NAME unit COMMAND unit_tests)
add_executable(dies_tests dies_test.cpp)
target_link_libraries(dies_tests cart GTest::gtest_main)
add_test(NAME dies COMMAND dies_tests)
add_executable(found_tests found_test.cpp)
target_link_libraries(found_tests cart GTest::gtest_main)
gtest_discover_tests(found_tests)
add_executable(lost_tests lost_test.cpp)
target_link_libraries(lost_tests cart GTest::gtest_main)
gtest_discover_tests(lost_tests)
""",
    "tests/passes_test.c": """\
#include "cart.h"
#include <stdio.h>
int main(void) { puts("all is well"); return add(1, 2) != 3; }
""",
    "tests/fails_test.c": """\
#include "cart.h"
#include <stdio.h>
int main(void) { if (add(1, 2) != 4) { puts("1 + 2 is not 4"); return 1; } return 0; }
""",
    "tests/crashes_test.c": "#include <stdlib.h>\nint main(void) { abort(); }\n",
    "tests/skips_test.c": "int main(void) { return 77; }\n",
    "tests/hangs_test.c": "int main(void) { for (;;) ; }\n",
    "tests/stops_test.c": '#include "cart.h"\nint main(void) { stop(); return 1; }\n',
    "tests/exits_test.c": "#include <stdlib.h>\nint main(void) { exit(0); }\n",
    "tests/late_exit_test.c": "#include <stdlib.h>\nint main(void) { exit(3); }\n",
    "tests/expected_test.c": "int main(void) { return 1; }\n",
    "tests/broken_test.c": "int main(void) { return no_such_name; }\n",
    "tests/lazy_test.c": "int main(void) { return 0; }\n",
    "tests/script.sh": "exit 0\n",
    "tests/unit_test.cpp": """\
#include "cart.h"
#include <gtest/gtest.h>
#include <cstdio>
TEST(Cart, Adds) { EXPECT_EQ(add(1, 2), 3); }
TEST(Cart, Fails) { EXPECT_EQ(add(1, 2), 4) << "no luck"; }
TEST(Cart, Skips) { GTEST_SKIP() << "not here"; }
TEST(Cart, DISABLED_Off) { FAIL(); }
TEST(Cart, Prints) { std::printf("[       OK ] Cart.Fails (0 ms)\\n"); }
class Many : public testing::TestWithParam<int> {};
TEST_P(Many, Small) { EXPECT_LT(GetParam(), 3); }
INSTANTIATE_TEST_SUITE_P(Some, Many, testing::Values(1, 1, 3));
""",
    "tests/more_test.cpp": "#include <gtest/gtest.h>\nTEST(More, Works) {}\n",
    "tests/dies_test.cpp": """\
#include <gtest/gtest.h>
#include <cstdlib>
TEST(Dies, First) {}
TEST(Dies, Second) { std::abort(); }
TEST(Dies, Third) {}
""",
    "tests/found_test.cpp": """\
#include <gtest/gtest.h>
TEST(Found, Works) {}
TEST(Found, Fails) { EXPECT_TRUE(false); }
class P : public testing::TestWithParam<int> {};
TEST_P(P, Is) { EXPECT_EQ(GetParam(), 7); }
INSTANTIATE_TEST_SUITE_P(I, P, testing::Values(7, 7));
""",
    "tests/lost_test.cpp": "#include <gtest/gtest.h>\nTEST(Lost, Works) { EXPECT_TRUE(no_such_name); }\n",
}
OUTCOMES = {
    "passed": {
        "passes_test.c::passes",
        "passes_test.c::said (it)",
        "exits_test.c::exits",
        "expected_test.c::expected",
        "lazy_test.c::lazy",
        "CMakeLists.txt::script",
        "unit_test.cpp::Cart.Adds",
        "unit_test.cpp::Cart.Prints",
        "unit_test.cpp::Some/Many.Small/0",
        "unit_test.cpp::Some/Many.Small/1",
        "more_test.cpp::More.Works",
        "dies_test.cpp::Dies.First",
        "found_test.cpp::Found.Works",
        "found_test.cpp::I/P.Is/0",
        "found_test.cpp::I/P.Is/1",
        "stops_test.c::stops",  # with a sign of tampering
    },
    "failed": {
        "fails_test.c::fails",
        "crashes_test.c::crashes",
        "hangs_test.c::hangs",
        "late_exit_test.c::late_exit",
        "CMakeLists.txt::setup",
        "unit_test.cpp::Cart.Fails",
        "unit_test.cpp::Some/Many.Small/2",
        "dies_test.cpp::Dies.Second",
        "found_test.cpp::Found.Fails",
    },
    "errored": {
        "broken_test.c::broken",
        "CMakeLists.txt::missing",
        "passes_test.c::needs_setup",
        "dies_test.cpp::Dies.Third",
        "lost_test.cpp::lost_tests_NOT_BUILT",
    },
    "skipped": {
        "skips_test.c::skips",
        "passes_test.c::off",
        "unit_test.cpp::Cart.Skips",
        "unit_test.cpp::Cart.DISABLED_Off",
    },
}

CATCH = {
    "CMakeLists.txt": """\
cmake_minimum_required(VERSION 3.20)
project(shop CXX)
enable_testing()
find_package(Catch2 REQUIRED)
add_executable(cases tests/cases_test.cpp)
target_link_libraries(cases Catch2::Catch2)
add_test(cases cases)
""",
    "tests/cases_test.cpp": """\
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#include <cstdlib>
TEST_CASE("adds, twice", "[cart]") { SECTION("one") { REQUIRE(1 == 1); } SECTION("two") { CHECK(1 == 1); } }
TEST_CASE("fails") { SECTION("one") { REQUIRE(1 == 1); } SECTION("two") { CHECK(1 == 2); } }
TEST_CASE("hidden", "[.]") { REQUIRE(0); }
TEST_CASE("may fail", "[!mayfail]") { REQUIRE(0); }
TEST_CASE("should fail", "[!shouldfail]") { REQUIRE(0); }
TEST_CASE("passes unexpectedly", "[!shouldfail]") { REQUIRE(1); }
TEMPLATE_TEST_CASE("typed", "[t]", int, char) { REQUIRE(sizeof(TestType) == 4); }
TEST_CASE("throws") { throw 3; }
TEST_CASE("ends everything") { std::_Exit(0); }
TEST_CASE("never runs") { REQUIRE(1); }
""",
}
CATCH_OUTCOMES = {
    "passed": {"cases_test.cpp::adds, twice", "cases_test.cpp::typed - int"},
    "failed": {
        "cases_test.cpp::fails",
        "cases_test.cpp::passes unexpectedly",
        "cases_test.cpp::typed - char",
        "cases_test.cpp::throws",
        "cases_test.cpp::ends everything",
    },
    "errored": {"cases_test.cpp::never runs"},
    "skipped": {"cases_test.cpp::may fail", "cases_test.cpp::should fail"},
}

FETCHED = {
    "CMakeLists.txt": """\
cmake_minimum_required(VERSION 3.20)
project(shop CXX)
include(FetchContent)
FetchContent_Declare(googletest GIT_REPOSITORY https://github.com/google/googletest.git GIT_TAG v1.15.2)
FetchContent_MakeAvailable(googletest)
enable_testing()
include(GoogleTest)
add_executable(cart tests/cart_test.cpp)
target_link_libraries(cart GTest::gtest_main)
gtest_discover_tests(cart)
""",
    "tests/cart_test.cpp": """\
#include <gtest/gtest.h>
TEST(Cart, Adds) { EXPECT_EQ(1 + 2, 3); }
TEST(Cart, Fails) { EXPECT_EQ(1 + 2, 4); }
""",
}
"""GoogleTest by FetchContent, which has no network in a sandbox: the system's GoogleTest takes its place."""

WRONG = '#include "product.h"\n#include <assert.h>\nint main(void) { assert(add(1, 2) == 3); return 0; }\n'
"""A test that fails, because each product adds wrongly."""
WRONG_GTEST = """\
#include <gtest/gtest.h>
extern "C" int add(int, int);
TEST(Cart, Adds) { EXPECT_EQ(add(1, 2), 3); }
TEST(Cart, Adds2) { EXPECT_EQ(add(2, 2), 4); }
"""
ADD = "int add(int a, int b) { return a - b; }\n"
FAKE_REPORT = (
    '{"tests": 2, "testsuites": [{"name": "Cart", "testsuite": ['
    '{"name": "Adds", "classname": "Cart", "status": "RUN", "result": "COMPLETED", "file": "tests/t_test.cpp"},'
    '{"name": "Adds2", "classname": "Cart", "status": "RUN", "result": "COMPLETED", "file": "tests/t_test.cpp"}]}]}'
).replace('"', '\\"')
HEADERS = """\
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
"""
WRITE_REPORT = f"""\
static void forge(void) {{
  char line[4096]; int fd = open("/proc/self/cmdline", O_RDONLY); int size = read(fd, line, sizeof line - 1);
  line[size > 0 ? size : 0] = 0; close(fd);
  for (char *word = line; word < line + size; word += strlen(word) + 1)
    if (strncmp(word, "--gtest_output=json:", 20) == 0) {{
      fd = open(word + 20, O_WRONLY | O_CREAT | O_TRUNC, 0600);
      if (write(fd, "{FAKE_REPORT}", strlen("{FAKE_REPORT}")) < 0) _exit(9);
      close(fd);
    }}
}}
"""
PLAIN_FORGERIES = {
    "constructor": "__attribute__((constructor)) static void c(void) { _exit(0); }\n",
    "system_call": "__attribute__((constructor)) static void c(void) { syscall(SYS_exit_group, 0); }\n",
    "destructor": "__attribute__((destructor)) static void c(void) { _exit(0); }\n"
    "__attribute__((constructor)) static void d(void) { signal(SIGABRT, (void (*)(int))exit); close(2); }\n",
    "other_program": '__attribute__((constructor)) static void c(void) { execl("/bin/true", "true", NULL); }\n',
    "abort_handler": "static void h(int s) { (void)s; _exit(0); }\n"
    "__attribute__((constructor)) static void c(void) { signal(SIGABRT, h); }\n",
    "no_assert": "void __assert_fail(const char *a, const char *b, unsigned c, const char *d)"
    " { (void)a; (void)b; (void)c; (void)d; }\n",
    "own_exit": "void _exit(int s) { (void)s; for (;;) syscall(SYS_exit_group, 0); }\n"
    "__attribute__((constructor)) static void c(void) { signal(SIGABRT, (void (*)(int))_exit); }\n",
}
"""Product code that turns a failing plain test green, by name."""
GTEST_FORGERIES = {
    "report": WRITE_REPORT
    + "static void all(void) { forge(); _exit(0); }\n"
    + "__attribute__((constructor)) static void c(void) { atexit(all); }\n",
    "everything": WRITE_REPORT
    + "__attribute__((constructor)) static void c(void) {\n"
    + '  printf("Cart.\\n  Adds\\n  Adds2\\n"); fflush(stdout); forge(); _exit(0); }\n',
    "lines": '__attribute__((constructor)) static void c(void) { printf("[ RUN      ] Cart.Adds\\n'
    '[       OK ] Cart.Adds (0 ms)\\n[ RUN      ] Cart.Adds2\\n[       OK ] Cart.Adds2 (0 ms)\\n"); }\n',
}
"""Product code that forges what GoogleTest reports, by name."""


def forging_project() -> dict[str, str]:
    """Return a project whose tests all fail without the forgery in each test's own product."""
    cmake = [
        "cmake_minimum_required(VERSION 3.20)",
        "project(forged C CXX)",
        "enable_testing()",
        "find_package(GTest)",
    ]
    files = {"src/product.h": "int add(int, int);\n"}
    for name, code in PLAIN_FORGERIES.items():
        files[f"src/{name}.c"] = HEADERS + code + ADD
        files[f"tests/{name}_test.c"] = WRONG
        cmake += [
            f"add_executable({name} tests/{name}_test.c src/{name}.c)",
            f"target_include_directories({name} PRIVATE src)",
            f"add_test({name} {name})",
        ]
    for name, code in GTEST_FORGERIES.items():
        files[f"src/{name}.c"] = HEADERS + code + ADD
        files[f"tests/{name}_test.cpp"] = WRONG_GTEST
        cmake += [
            f"add_executable({name} tests/{name}_test.cpp src/{name}.c)",
            f"target_link_libraries({name} GTest::gtest_main)",
            f"add_test({name} {name})",
        ]
    files["CMakeLists.txt"] = "\n".join(cmake) + "\n"
    return files
