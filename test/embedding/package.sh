#!/usr/bin/env bash
# What a program's find_package(OrderMoE CONFIG) says where something that it needs is not there. package.sh SOURCE BUILD
set -uo pipefail
source=$1
build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
  echo "FAILED: $1"
  failures=$((failures + 1))
}

# As it is installed; what it would import does not matter here.
package=$work/prefix/cmake
mkdir -p "$package"
cp "$build/OrderMoEConfig.cmake" "$build/OrderMoEConfigVersion.cmake" "$source/cmake/FindCAF.cmake" "$package"
sed -i 's|^get_filename_component(PACKAGE_PREFIX_DIR .*|set(PACKAGE_PREFIX_DIR "'"$work/prefix"'")|' "$package/OrderMoEConfig.cmake"
echo 'message(STATUS "imported")' >"$package/OrderMoETargets.cmake"

mkdir "$work/host"
cat >"$work/host/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(host LANGUAGES CXX)
find_package(OrderMoE 0.1 CONFIG ${NEED})
message(STATUS "found: '${OrderMoE_FOUND}', path: '${CMAKE_MODULE_PATH}', why: '${OrderMoE_NOT_FOUND_MESSAGE}'")
END

# configures NAME CODE PATTERN OPTION...: the exit code of the host's configuration, and a pattern in what it says.
configures() {
  local name=$1 code=$2 pattern=$3
  shift 3
  local output got
  # Compilers are looked for once.
  rm -rf "$work/host/built/CMakeCache.txt"
  output=$(cmake -S "$work/host" -B "$work/host/built" -DOrderMoE_DIR="$package" "$@" 2>&1)
  got=$?
  output=$(tr -s '\n ' ' ' <<<"$output")
  [[ $got -eq $code && $output =~ $pattern ]] || fail "$name: exit code $got, expected $code and '$pattern', got: $output"
}

configures "where all is there" 0 "imported .*found: '1', path: '',"
mkdir -p "$work/boost/boost"
printf '#define BOOST_VERSION 106900\n#define BOOST_LIB_VERSION "1_69"\n' >"$work/boost/boost/version.hpp"
other_boost=(-DBoost_INCLUDE_DIR="$work/boost" -DBoost_NO_BOOST_CMAKE=ON)
configures "with another Boost" 0 "found: '(0|FALSE)', path: '', why: '.*built with Boost 1.*, and Boost 1.69.0 was found" "${other_boost[@]}"
configures "with another Boost, needed" 1 "built with Boost 1.*, and Boost 1.69.0 was found" "${other_boost[@]}" -DNEED=REQUIRED
PKG_CONFIG_LIBDIR=/nowhere configures "without PCRE2" 0 "found: '(0|FALSE)', path: '', why: '.*libpcre2-dev"
configures "without CAF" 0 "found: '(0|FALSE)', path: '', why: '.*libcaf-dev" -DCMAKE_DISABLE_FIND_PACKAGE_CAF=ON
configures "without CAF, needed" 1 "libcaf-dev" -DCMAKE_DISABLE_FIND_PACKAGE_CAF=ON -DNEED=REQUIRED
((failures == 0)) || exit 1
echo "whoever may do without OrderMoE can"
