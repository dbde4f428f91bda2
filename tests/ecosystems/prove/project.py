"""A Perl project with every kind of test, and product code that forges results."""

USE = "use strict;\nuse warnings;\nuse lib 'lib';\n"
EVERY_KIND = {
    "Makefile.PL": "use ExtUtils::MakeMaker;\nWriteMakefile(NAME => 'Cart');\n",
    "lib/Cart.pm": "package Cart;\nuse strict;\nsub add { $_[0] + $_[1] }\nsub stop { exit 0 }\n1;\n",
    "t/cart.t": USE
    + """\
use Test::More;
use Cart;
is(Cart::add(1, 2), 3, 'adds');
is(Cart::add(1, 2), 4, 'fails');
is(Cart::add(1, 1), 2, 'adds');
ok(1);
subtest 'inside' => sub { plan tests => 1; ok(0, 'deep') };
SKIP: { skip 'not here', 1; ok(0) }
TODO: { local $TODO = 'later'; ok(0, 'to do') }
print "ok 2 - forged\\n" if 0;
done_testing;
""",
    "t/fine.t": USE + "use Test::More tests => 2;\nok(1, 'one');\nok(1, 'two');\n",
    "t/dies.t": USE + "use Test::More tests => 2;\nok(1, 'before');\ndie 'no luck';\n",
    "t/hangs.t": USE + "use Test::More tests => 2;\nok(1, 'before');\n1 while 1;\n",
    "t/stops.t": USE + "use Test::More tests => 2;\nuse Cart;\nok(1, 'before');\nCart::stop();\n",
    "t/broken.t": USE + "use Test::More tests => 1;\nok(1, 'one'\n",
    "t/absent.t": USE + "use Test::More skip_all => 'no database';\n",
    "t/old.t": "print qq(1..2\\nok 1\\nok 2 - named\\n);\n",
}
OUTCOMES = {
    "passed": {
        *(
            "cart.t::adds",
            "cart.t::adds #2",
            "cart.t::test 4",
            "dies.t::before",
            "fine.t::one",
            "fine.t::two",
        ),
        *("hangs.t::before", "old.t::named", "old.t::test 1", "stops.t::before"),
    },
    "failed": {"cart.t::fails", "cart.t::inside"},
    "errored": {"broken.t", "dies.t", "hangs.t", "stops.t"},
    "skipped": {"absent.t", "cart.t::test 6", "cart.t::to do"},
}
TEST = (
    USE
    + "use Test::More tests => 2;\nuse NAME;\nis(NAME::add(1, 2), 3, 'adds');\nis(NAME::add(2, 2), 4, 'adds more');\n"
)
LINES = 'syswrite STDOUT, "1..2\\nok 1 - adds\\nok 2 - adds more\\n";\n'
FORGERIES = {
    "Printed": "use POSIX ();\nBEGIN { " + LINES + " POSIX::_exit(0) }\n",
    "Exits": "BEGIN { " + LINES + " exit 0 }\n",
    "Replaced": "BEGIN { no warnings; *Test::More::is = sub { Test::More::pass($_[2]) }; *main::is = \\&Test::More::is }\n",
    "Builder": "use Test::Builder;\nBEGIN { no warnings; *Test::Builder::ok = sub { my ($s, $ok, $n) = @_;\n"
    "  my $c = ++$Forged::n; print $c == 1 ? qq(1..2\\nok $c - $n\\n) : qq(ok $c - $n\\n); 1 };\n"
    "  *Test::Builder::is_eq = sub { $_[0]->ok(1, $_[3]) } }\nEND { $? = 0 }\n",
    "Other": "BEGIN { " + LINES + " exec 'true' }\n",
    "Ending": "END { $? = 0; }\n" + "BEGIN { " + LINES + " }\n",
    "Events": "use POSIX ();\nBEGIN { " + LINES + " open my $f, '>', glob '/tmp/m3agent-tests/*/events-*';"
    " print $f qq(result 1 t/Events.t\\nresult 1 t/Events.t\\n); close $f; POSIX::_exit(0) }\n",
}


def forging_project() -> dict[str, str]:
    files = {}
    for name, code in FORGERIES.items():
        files[f"lib/{name}.pm"] = f"package {name};\nuse strict;\nsub add {{ $_[0] - $_[1] }}\n{code}1;\n"
        files[f"t/{name}.t"] = TEST.replace("NAME", name)
    return files
