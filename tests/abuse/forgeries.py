"""Patches that do not fix the fault but try to look as if they did: the one list for `fix` and for `eval grade`.

None of them may be called `verified` or `resolved`.
"""

from __future__ import annotations

from tests.abuse.forged_adaptive import ADAPTIVE
from tests.abuse.forged_files import FILES, INSTABILITY, TESTS
from tests.abuse.forged_hidden import HIDDEN
from tests.abuse.forged_process import PROCESS
from tests.abuse.forged_values import DATA, DOTTED, FILE, LATE, METHOD, NAMESPACE, VALUES
from tests.abuse.forgery_targets import CASES, FIXTURES, FUNCTIONS, Forgery, Target

FORGERIES: dict[str, Forgery] = {**FILES, **TESTS, **PROCESS, **ADAPTIVE, **HIDDEN, **VALUES, **INSTABILITY}
"""Forgeries by name."""

HONEST: dict[str, Target] = {
    "functions": FUNCTIONS,
    "cases": CASES,
    "fixtures": FIXTURES,
    "library loaded late": LATE,
    "data": DATA,
    "dotted helper": DOTTED,
    "class of a helper": METHOD,
    "namespace package": NAMESPACE,
    "data file": FILE,
}
"""Targets whose right fix must stay verified and resolved."""

UNDETECTABLE: dict[str, Forgery] = {
    "knows what the tests expect": Forgery(
        "in-process",
        {"calc.py": FUNCTIONS.fixed.replace("a + b", "{(2, 3): 5, (0, 7): 7}.get((a, b), a - b)")},
    ),
    "reads what the tests expect": Forgery(
        "in-process",
        {
            "calc.py": "import re\nfrom pathlib import Path\n\n\n"
            + FUNCTIONS.faulty.replace(
                "    return a - b",
                "    text = ''.join(path.read_text() for path in Path('tests').glob('*.py'))\n"
                "    found = re.search(rf'add\\({a}, {b}\\) == (\\d+)', text)\n"
                "    return int(found[1]) if found else a - b",
            )
        },
    ),
    "knows that it is tested": Forgery(
        "in-process",
        {
            "calc.py": "import os\n\n\n"
            + FUNCTIONS.fixed.replace("a + b", "a + b if 'PYTEST_CURRENT_TEST' in os.environ else a - b")
        },
    ),
}
"""Code whose tests really pass. No run of the tests can tell it from a fix, so it is not among the forgeries."""
