#include "config/error.hpp"

#include <cstdio>
#include <cstdlib>

namespace ordermoe {

const char* describe(errc code) noexcept {
  switch (code) {
    case errc::usage:
      return "the command line is not valid";
    case errc::not_found:
      return "a file is missing";
    case errc::io:
      return "reading or writing failed";
    case errc::malformed:
      return "an input is malformed";
    case errc::out_of_range:
      return "a value is out of range";
    case errc::mismatch:
      return "two inputs do not belong together";
    case errc::unsupported:
      return "an input asks for something unsupported";
    case errc::infeasible:
      return "there is no solution";
    case errc::timed_out:
      return "an answer did not come in time";
    case errc::interrupted:
      return "interrupted";
    case errc::failed:
      return "a check failed";
  }
  return "unknown error";
}

int exit_code(errc code) noexcept {
  switch (code) {
    case errc::usage:
    case errc::not_found:
    case errc::malformed:
    case errc::out_of_range:
    case errc::mismatch:
    case errc::unsupported:
      return 2;
    case errc::infeasible:
      return 3;
    case errc::io:
    case errc::timed_out:
    case errc::interrupted:
    case errc::failed:
      return 1;
  }
  return 1;
}

error at(const std::string& place, error inner) {
  inner.message = place + ": " + inner.message;
  return inner;
}

void broken_invariant(const char* file, int line, const char* expression,
                      const std::string& message) {
  std::fprintf(stderr, "ordermoe: internal error at %s:%d: %s (%s does not hold)\n", file, line,
               message.c_str(), expression);
  std::fflush(stderr);
  std::abort();
}

}  // namespace ordermoe
