#!/usr/bin/env bash
# Install the toolchains and test runners of other languages, for `make test-languages`.
#
#   scripts/languages.sh [js go c ...]
#
# Without a name, everything is installed. A further run reuses what is already installed. Toolchains come from Debian's
# packages, by apt-get as root; SETUP=no forbids that. Everything else goes into .setup/languages. To add a language, write a
# function install_NAME and add NAME to `languages`.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
folder=$setup_dir/languages
languages=(js go c shell rust ruby php java elixir)

# debian PACKAGE...: install Debian packages that are missing. Without root or apt-get, tests that need them are skipped.
debian() {
  local package missing=()
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  ((${#missing[@]} > 0)) || return 0
  if [[ ${SETUP:-} == no || $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    say "not installed: ${missing[*]}; tests that need them are skipped."
    return 0
  fi
  export DEBIAN_FRONTEND=noninteractive
  step "reading Debian's list of packages" apt-get update || die "the list of packages could not be read."
  step "installing ${missing[*]}" apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}" ||
    die "Debian's packages could not be installed."
}

install_go() { debian golang-go; }
install_c() { debian gcc g++ make cmake ninja-build meson automake libgtest-dev catch2; }
install_shell() { debian bats perl; }
install_rust() { debian rustc-web cargo-web; }
install_ruby() { debian ruby ruby-minitest ruby-rspec rake; }
install_php() { debian php-cli php-xml php-mbstring phpunit composer; }
install_java() {
  debian default-jdk-headless maven gradle junit4 libsurefire-java libmaven-compiler-plugin-java libmaven-resources-plugin-java
}
install_elixir() { debian elixir; }

# JavaScript and TypeScript: the test runners that are npm packages. `node --test` needs nothing.
js_packages=(jest@30.5.2 vitest@4.1.12 mocha@12.0.3 ava@7.0.0)

install_js() {
  command -v npm >/dev/null || debian nodejs npm
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
