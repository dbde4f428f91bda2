"""Maven and Gradle in real sandboxes: each kind of test, and code that forges results."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from m3agent.tools.runners.base import Limits, Runner
from m3agent.tools.runners.java import Gradle, Maven
from tests.ecosystems.records import outcomes
from tests.ecosystems.table import MAVENS, MakeSandbox, believed, needs, run, successes

pytestmark = [
    pytest.mark.languages,
    pytest.mark.timeout(900),
    needs("java", "javac", "mvn", "gradle", *MAVENS),
]
MEMORY = 3 << 30
POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>shop</groupId><artifactId>{name}</artifactId><version>1</version>{more}
<properties><maven.compiler.source>17</maven.compiler.source><maven.compiler.target>17</maven.compiler.target>
<project.build.sourceEncoding>UTF-8</project.build.sourceEncoding></properties>
<dependencies><dependency><groupId>junit</groupId><artifactId>junit</artifactId><version>4.x</version>
<scope>test</scope></dependency></dependencies></project>
"""
GRADLE = """\
apply plugin: 'java'
repositories { maven { url '/usr/share/maven-repo' } }
dependencies { testCompile 'junit:junit:4.x' }
"""
IMPORTS = "package shop;\nimport org.junit.*;\nimport static org.junit.Assert.*;\n"
CART = "package shop;\npublic class Cart { public static int add(int a, int b) { return a + b; } }\n"
WRONG = CART.replace("a + b", "a - b")
KINDS = f"""{IMPORTS}
public class CartTest {{
  @Test public void passes() {{ assertEquals(3, Cart.add(1, 2)); }}
  @Test public void fails() {{ assertEquals(4, Cart.add(1, 2)); }}
  @Test public void raises() {{ throw new IllegalStateException("no device"); }}
  @Test @Ignore public void skips() {{ fail(); }}
  @Test public void assumes() {{ Assume.assumeTrue(false); }}
  @Test(expected = RuntimeException.class) public void expects() {{ throw new RuntimeException(); }}
  @Test(timeout = 500) public void hangs() throws Exception {{ while (true) Thread.sleep(10); }}
  public static class InnerTest {{ @Test public void inside() {{ assertTrue(true); }} }}
}}
"""
MANY = f"""{IMPORTS}
import org.junit.runner.RunWith; import org.junit.runners.Parameterized;
@RunWith(Parameterized.class) public class ManyTest {{
  @Parameterized.Parameters public static Object[] numbers() {{ return new Object[] {{1, 2}}; }}
  @Parameterized.Parameter public int n;
  @Test public void many() {{ assertNotEquals(2, n); }}
}}
"""
SETUP = f"""{IMPORTS}
public class SetUpTest {{
  @BeforeClass public static void open() {{ throw new IllegalStateException("no database"); }}
  @Test public void one() {{ }}
}}
"""
RED = f"""{IMPORTS}
public class RedTest {{
  @Test public void adds() {{ assertEquals(3, Cart.add(1, 2)); }}
  @Test public void more() {{ assertEquals(5, Cart.add(2, 3)); }}
}}
"""


def module(prefix: str, cart: str, **tests: str) -> dict[str, str]:
    files = {f"{prefix}src/test/java/shop/{name}.java": text for name, text in tests.items()}
    return {f"{prefix}src/main/java/shop/Cart.java": cart, **files}


def maven(cart: str, **tests: str) -> dict[str, str]:
    return {"pom.xml": POM.format(name="shop", more=""), **module("", cart, **tests)}


def gradle(cart: str, **tests: str) -> dict[str, str]:
    return {
        "build.gradle": GRADLE,
        "settings.gradle": "rootProject.name = 'shop'\n",
        **module("", cart, **tests),
    }


def two_modules() -> dict[str, dict[str, str]]:
    """Return a project for each tool with a module that runs and one that cannot be compiled."""
    both = module("a/", CART, CartTest=KINDS, ManyTest=MANY, SetUpTest=SETUP)
    both |= module("b/", "package shop;\npublic class Cart { int broken( }\n", RedTest=RED)
    modules = "<packaging>pom</packaging><modules><module>a</module><module>b</module></modules>"
    return {
        "maven": {
            "pom.xml": POM.format(name="all", more=modules),
            "a/pom.xml": POM.format(name="a", more=""),
            "b/pom.xml": POM.format(name="b", more=""),
            **both,
        },
        "gradle": {
            "settings.gradle": "include 'a', 'b'\n",
            "build.gradle": "",
            "a/build.gradle": GRADLE,
            "b/build.gradle": GRADLE,
            **both,
        },
    }


@pytest.mark.parametrize("runner", [Maven(), Gradle()], ids=lambda runner: runner.name)
async def test_every_kind(sandbox_of: MakeSandbox, runner: Runner) -> None:
    report = await run(sandbox_of, runner, two_modules()[runner.name], memory=MEMORY, limits=Limits(200, 5))
    cart = "a/src/test/java/shop/CartTest.java::CartTest"
    # Gradle has no errors; JUnit's names of a class that cannot be set up differ
    error = "error" if runner.name == "maven" else "failed"
    found = outcomes(report)
    setup = {ident: found.pop(ident) for ident in list(found) if "SetUpTest" in ident}
    assert list(setup.values()) == [error]
    assert found == {
        f"{cart} > passes": "passed",
        f"{cart} > fails": "failed",
        f"{cart} > raises": error,
        f"{cart} > skips": "skipped",
        f"{cart} > assumes": "skipped",
        f"{cart} > expects": "passed",
        f"{cart} > hangs": error,
        "a/src/test/java/shop/ManyTest.java::ManyTest > many[0]": "passed",
        "a/src/test/java/shop/ManyTest.java::ManyTest > many[1]": "failed",
        f"b/{'pom.xml' if runner.name == 'maven' else 'build.gradle'}": "error",
        # Surefire leaves out nested classes
        **({} if runner.name == "maven" else {f"{cart}$InnerTest > inside": "passed"}),
    }
    assert not report.signs.forged
    assert "expected:<4> but was:<3>" in report.errors[f"{cart} > fails"]


@pytest.mark.parametrize("runner", [Maven(), Gradle()], ids=lambda runner: runner.name)
async def test_only_what_is_wanted_runs(sandbox_of: MakeSandbox, runner: Runner) -> None:
    files = (maven if runner.name == "maven" else gradle)(CART, RedTest=RED, CartTest=KINDS)
    wanted = ["src/test/java/shop/RedTest.java::RedTest > adds"]
    report = await run(sandbox_of, runner, files, wanted, memory=MEMORY)
    test = "src/test/java/shop/RedTest.java::RedTest"
    assert outcomes(report) == {f"{test} > adds": "passed", f"{test} > more": "passed"}
    assert believed(report)


async def test_reports_of_an_earlier_run_do_not_count(sandbox_of: MakeSandbox) -> None:
    """The environment may have reports of a version that could be compiled."""
    old = "<testsuite name='shop.RedTest'><testcase classname='shop.RedTest' name='adds'/></testsuite>"
    files = maven("package shop;\npublic class Cart { int broken( }\n", RedTest=RED)
    files["target/surefire-reports/TEST-shop.RedTest.xml"] = old
    report = await run(sandbox_of, Maven(), files, memory=MEMORY)
    assert outcomes(report) == {"pom.xml": "error"}
    assert "Cart.java" in report.errors["pom.xml"]


XML = (
    "<testsuite name='shop.RedTest'><testcase classname='shop.RedTest' name='adds'/>"
    "<testcase classname='shop.RedTest' name='more'/></testsuite>"
)
WRITE = (
    "Runtime.getRuntime().addShutdownHook(new Thread(() -> {{ try {{ java.nio.file.Files.write("
    'java.nio.file.Path.of("target/surefire-reports/TEST-shop.RedTest.xml"), "{xml}".getBytes()); {more} }}'
    " catch (Exception e) {{ }} }}));"
)
PASSED = "[INFO] Tests run: 2, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 0.1 s - in shop.RedTest"
FORGERIES = {
    "exit": "System.exit(0);",
    "halt": "Runtime.getRuntime().halt(0);",
    "the report is replaced": WRITE.format(xml=XML, more=""),
    "the report is replaced and the log is imitated": f'System.out.println("{PASSED}");'
    + WRITE.format(xml=XML, more=""),
    "the channel to Maven is used": "try { new java.io.FileOutputStream(java.io.FileDescriptor.out).write("
    f'"\\n{PASSED}\\n".getBytes()); }} catch (Exception e) {{ }}' + WRITE.format(xml=XML, more=""),
    "the key is read": 'if (new java.io.File("/tmp/m3agent-tests").list().length > 0 && java.util.Arrays.stream('
    'new java.io.File("/tmp/m3agent-tests").listFiles()).flatMap(f -> java.util.Arrays.stream(f.list()))'
    '.anyMatch(n -> n.endsWith(".key"))) return a + b;',
}


SHADOW = "package org.junit;\npublic class Assert { public static void assertEquals(long a, long b) { } }\n"


def forged(code: str, make: Callable[..., dict[str, str]]) -> list[dict[str, str]]:
    return [make(WRONG.replace("return", f"{code} return"), RedTest=RED)]


@pytest.mark.parametrize("runner", [Maven(), Gradle()], ids=lambda runner: runner.name)
async def test_forgeries_are_not_believed(sandbox_of: MakeSandbox, runner: Runner) -> None:
    make = maven if runner.name == "maven" else gradle
    tried = {name: forged(code, make) for name, code in FORGERIES.items()}
    tried["none"] = [make(CART, RedTest=RED)]
    tried["a library of tests is shadowed"] = [
        make(WRONG, RedTest=RED) | {"src/main/java/org/junit/Assert.java": SHADOW}
    ]
    red = "src/test/java/shop/RedTest.java::RedTest > adds"
    assert await successes(sandbox_of, runner, tried, red, memory=MEMORY) == ["none"]
