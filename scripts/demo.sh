#!/usr/bin/env bash
# Fix the example package, copied into a temporary git repository, with the embedded engine.
# The verified patch goes to standard output. Without a verified patch, the exit code is not 0.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

work=$(mktemp -d "${TMPDIR:-/tmp}/m3agent-demo.XXXXXX")
repo=$work/ferry
cp -R "$root/examples/ferry" "$repo"

# The user's git settings (signing, hooks, templates) must not affect the temporary repository.
git() {
  GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 command git -C "$repo" \
    -c user.name=demo -c user.email=demo@localhost -c init.defaultBranch=main "$@"
}
git init -q --template=
git add -A
git commit -q -m "ferry 0.3.0"

say "${bold}demo:${plain} m3agent fix ISSUE.md --repo $repo --engine embedded --apply"
status=0
"$root/.venv/bin/m3agent" fix "$repo/ISSUE.md" --repo "$repo" --engine embedded --apply || status=$?
if ((status != 0)); then
  say "demo: no verified patch (exit code $status); the repository is left in $repo."
  exit "$status"
fi
say "demo: for a repository of your own, type \`. $(printf %q "$root")/.venv/bin/activate\`, then \`m3agent doctor\` in its folder."
