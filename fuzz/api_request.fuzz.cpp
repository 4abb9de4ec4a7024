#include <nlohmann/json.hpp>

#include "fuzz/support.hpp"
#include "gateway/openai/request.hpp"

namespace {

namespace gw = ordermoe::gateway;

constexpr gw::request_limits limits{.choices = 8, .vocabulary = 100, .max_tokens = 1000};

/// What is refused is told in JSON, of a member or of none.
void check_problem(const gw::api_problem& what) {
  const auto text = gw::problem_json(what);
  ORDERMOE_CHECK(fuzz::is_utf8(text), "a problem that is no UTF-8");
  const auto told = nlohmann::json::parse(text);
  ORDERMOE_CHECK(what.status == 400 && !told["error"]["message"].get<std::string>().empty(),
                 "a problem that says nothing");
}

void check_generation(const gw::generation& how, std::size_t prompts) {
  ORDERMOE_CHECK(how.temperature >= 0 && how.temperature <= 2, "a temperature out of range");
  ORDERMOE_CHECK(how.top_p > 0 && how.top_p <= 1, "a top_p out of range");
  ORDERMOE_CHECK(how.n >= 1 && prompts * how.n <= limits.choices, "too many choices");
  ORDERMOE_CHECK(!how.max_tokens || (*how.max_tokens >= 1 && *how.max_tokens <= limits.max_tokens),
                 "too many tokens");
  for (const auto& [id, bias] : how.logit_bias)
    ORDERMOE_CHECK(id >= 0 && id < 100 && bias >= -100 && bias <= 100, "a bias out of range");
  ORDERMOE_CHECK(!how.quality_percent || (*how.quality_percent >= 0 && *how.quality_percent <= 100),
                 "a quality budget out of range");
  for (const auto& stop : how.stop) ORDERMOE_CHECK(!stop.empty(), "an empty stop string");
}

}  // namespace

/// The first byte is the kind of request, the rest its body.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const auto body = fuzz::text_of(data + 1, size - 1);
  switch (data[0] % 4) {
    case 0: {
      const auto read = gw::parse_chat(body, limits);
      if (read.problem) return check_problem(*read.problem), 0;
      ORDERMOE_CHECK(!read.content.messages.empty(), "a chat without messages");
      check_generation(read.content.how, 1);
      break;
    }
    case 1: {
      const auto read = gw::parse_completion(body, limits);
      if (read.problem) return check_problem(*read.problem), 0;
      ORDERMOE_CHECK(!read.content.prompts.empty(), "a completion without prompts");
      check_generation(read.content.how, read.content.prompts.size());
      break;
    }
    case 2: {
      const auto read = gw::parse_tokenize(body, limits);
      if (read.problem) check_problem(*read.problem);
      break;
    }
    case 3: {
      const auto read = gw::parse_detokenize(body, limits);
      if (read.problem) return check_problem(*read.problem), 0;
      for (const auto id : read.content.ids)
        ORDERMOE_CHECK(id >= 0 && id < 100, "an id beyond the vocabulary");
      break;
    }
  }
  return 0;
}
