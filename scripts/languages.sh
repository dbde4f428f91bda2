#!/usr/bin/env bash
# Install the test runners of other languages into .setup/languages, for `make test-languages`.
#
#   scripts/languages.sh [js ...]
#
# Without a name, everything is installed. A further run reuses what is already installed. Nothing goes outside this
# checkout. To add a language, write a function install_NAME and add NAME to `languages`.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
folder=$setup_dir/languages
languages=(js)

# JavaScript and TypeScript: the test runners that are npm packages. `node --test` needs nothing.
js_packages=(jest@30.5.2 vitest@4.1.12 mocha@12.0.3 ava@7.0.0)

install_js() {
  command -v npm >/dev/null || die "npm is not installed; install it (Debian, Ubuntu: apt-get install npm) and run this again."
  local wanted="${js_packages[*]}"
  [[ $(cat "$folder/js.installed" 2>/dev/null) != "$wanted" ]] || return 0
  rm -rf "$folder/node_modules" "$folder/package.json" "$folder/package-lock.json"
  mkdir -p "$folder"
  echo '{"private": true}' >"$folder/package.json"
  # Scripts of packages do not run, as in the environments that m3agent builds.
  step "installing $wanted" npm --prefix "$folder" install --ignore-scripts --no-audit --no-fund --save-exact \
    "${js_packages[@]}" || die "the test runners of JavaScript could not be installed; is the npm registry reachable from here?"
  echo "$wanted" >"$folder/js.installed"
}

(($# > 0)) || set -- "${languages[@]}"
for language in "$@"; do
  [[ " ${languages[*]} " == *" $language "* ]] ||
    die "scripts/languages.sh knows ${languages[*]}, not '$language'."
  "install_$language"
done
