#include "model/text/chat_template.hpp"

#include <nlohmann/json.hpp>

#include "test/model/fixture.hpp"

/// What conversations look like is written here by hand after the model cards of
/// Mixtral-8x7B-Instruct, Qwen1.5-MoE-A2.7B-Chat, Qwen3-30B-A3B and OLMoE-1B-7B-0924-Instruct. The
/// programs hold the expressions of theirs that matter, not their whole text.
namespace {

namespace om = ordermoe::model;
using fixture::check_error;
using nlohmann::json;
using om::chat_role::assistant;
using om::chat_role::user;
using ordermoe::errc;
using std::string;
constexpr auto from_system = om::chat_role::system;
using conversation = std::vector<om::chat_message>;

const string mixtral =
    "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}"
    "{% endif %}{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    R"({% if loop.first %}{{ " [INST] " + system_message + "\n\n" + message["content"] + )"
    R"(" [/INST]" }}{% else %}{{ " [INST] " + message["content"] + " [/INST]" }}{% endif %})"
    R"({% else %}{{ " " + message["content"] + eos_token}}{% endif %}{% endfor %})";
const string older_mixtral =
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ message['content'] + eos_token}}{% endif %}{% endfor %}";
const string qwen =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    R"({{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %})"
    R"({{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}})"
    R"({% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";
const string qwen3 =
    R"({%- if tools %}{{- '<|im_start|>system\n' }}{%- endif %}{%- for message in messages %})"
    R"({%- set content = message.content.split('</think>')[-1].lstrip('\n') %})"
    R"({{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}{%- endfor %})"
    R"({%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %})";
const string olmoe =
    "{{ bos_token }}{% for message in messages %}\n{% if message['role'] == 'system' %}\n"
    "{{ '<|system|>\n' + message['content'] }}\n{% elif message['role'] == 'user' %}\n"
    "{{ '<|user|>\n' + message['content'] }}\n{% elif message['role'] == 'assistant' %}\n"
    "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}{% endfor %}";

const string newer_olmoe =
    R"({{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %})"
    R"({{ '<|system|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'user' %})"
    R"({{ '<|user|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'assistant' %})"
    R"({% if not loop.last %}{{ '<|assistant|>\n'  + message['content'] + eos_token + '\n' }})"
    R"({% else %}{{ '<|assistant|>\n'  + message['content'] + eos_token }}{% endif %}{% endif %})"
    R"({% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %})";

string config_of(const string& program, const string& bos, const string& eos) {
  return json{{"chat_template", program}, {"bos_token", bos}, {"eos_token", {{"content", eos}}}}
      .dump();
}

om::chat_template need_template(const string& program, const string& bos, const string& eos) {
  return fixture::need(
      om::chat_template::parse_config(config_of(program, bos, eos), "tokenizer_config.json"));
}

string rendered(const om::chat_template& chat, const conversation& messages) {
  return fixture::need(chat.render(messages));
}

const conversation one_turn = {{user, "Who are you?"}};
const conversation two_turns = {{user, "Hi."}, {assistant, "Hello!"}, {user, "Who are you?"}};
const conversation with_system = {{from_system, "Be brief."}, {user, "Hi."}};

}  // namespace

BOOST_AUTO_TEST_SUITE(chat_template)

BOOST_AUTO_TEST_CASE(mixtral_writes_questions_between_its_inst_marks) {
  const auto chat = need_template(mixtral, "<s>", "</s>");
  BOOST_TEST((chat.format() == om::chat_format::inst));
  BOOST_TEST(rendered(chat, one_turn) == "<s> [INST] Who are you? [/INST]");
  BOOST_TEST(rendered(chat, two_turns) ==
             "<s> [INST] Hi. [/INST] Hello!</s> [INST] Who are you? [/INST]");
  BOOST_TEST(rendered(chat, with_system) == "<s> [INST] Be brief.\n\nHi. [/INST]");
  const auto older = need_template(older_mixtral, "<s>", "</s>");
  BOOST_TEST(rendered(older, two_turns) == rendered(chat, two_turns));
  check_error(older.render(with_system), errc::unsupported, {"message 1", "system"});
  // With the system message before another question than the first: not ours.
  auto last = mixtral;
  last.replace(last.find("loop.first"), 10, "loop.last");
  check_error(need_template(last, "<s>", "</s>").render(with_system), errc::unsupported,
              {"message 1", "system"});
}

BOOST_AUTO_TEST_CASE(qwen_writes_every_message_with_its_role) {
  const auto chat = need_template(qwen, "", "<|endoftext|>");
  BOOST_TEST((chat.format() == om::chat_format::chatml));
  BOOST_TEST(rendered(chat, one_turn) ==
             "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
             "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n");
  BOOST_TEST(rendered(chat, with_system) ==
             "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n"
             "<|im_start|>assistant\n");
  BOOST_TEST(rendered(chat, two_turns) ==
             "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
             "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
             "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n");
}

BOOST_AUTO_TEST_CASE(qwen3_leaves_earlier_thoughts_out_and_says_nothing_of_its_own) {
  const auto chat = need_template(qwen3, "", "<|im_end|>");
  BOOST_TEST(rendered(chat, {{user, "Hi."},
                             {assistant, "<think>\nA greeting.\n</think>\n\nHello!"},
                             {user, "Who are you?"}}) ==
             "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
             "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n");
}

BOOST_AUTO_TEST_CASE(olmoe_begins_and_ends_with_its_own_tokens) {
  const auto chat = need_template(olmoe, "<|begin|>", "<|endoftext|>");
  BOOST_TEST((chat.format() == om::chat_format::tulu));
  BOOST_TEST(rendered(chat, one_turn) == "<|begin|><|user|>\nWho are you?\n<|assistant|>\n");
  BOOST_TEST(rendered(chat, two_turns) ==
             "<|begin|><|user|>\nHi.\n<|assistant|>\nHello!<|endoftext|>\n"
             "<|user|>\nWho are you?\n<|assistant|>\n");
  BOOST_TEST(rendered(chat, with_system) ==
             "<|begin|><|system|>\nBe brief.\n<|user|>\nHi.\n<|assistant|>\n");
  const auto newer = need_template(newer_olmoe, "<|begin|>", "<|endoftext|>");
  for (const auto& messages : {one_turn, two_turns, with_system})
    BOOST_TEST(rendered(newer, messages) == rendered(chat, messages));
}

BOOST_AUTO_TEST_CASE(the_bundled_models_are_asked_in_lines) {
  for (const char* name : {"lineage", "upcycled"}) {
    const auto folder = fixture::fs::path(ORDERMOE_DATA) / "models" / name;
    const auto chat = fixture::need(om::chat_template::load(folder));
    BOOST_TEST((chat.format() == om::chat_format::question));
    BOOST_TEST(rendered(chat, one_turn) == "Q: Who are you?\nA:");
    BOOST_TEST(rendered(chat, two_turns) == "Q: Hi.\nA: Hello!\nQ: Who are you?\nA:");
    BOOST_TEST(rendered(chat, with_system) == "Be brief.\nQ: Hi.\nA:");
    BOOST_TEST((chat.turn_ends() == std::vector<string>{"\n"}));
    const auto tokens = fixture::need(om::tokenizer::load(folder));
    BOOST_TEST(fixture::need(chat.encode(*tokens, two_turns)) ==
                   tokens->encode("Q: Hi.\nA: Hello!\nQ: Who are you?\nA:"),
               boost::test_tools::per_element());
  }
  BOOST_TEST(need_template(qwen, "", "<|endoftext|>").turn_ends().empty());
}

BOOST_AUTO_TEST_CASE(turns_that_make_no_conversation_are_refused) {
  const auto chat = need_template(qwen, "", "<|endoftext|>");
  check_error(chat.render({}), errc::out_of_range, {"no messages"});
  check_error(chat.render(conversation{{from_system, "x"}}), errc::out_of_range,
              {"message 1", "end with the user"});
  check_error(chat.render(conversation{{user, "x"}, {assistant, "y"}}), errc::out_of_range,
              {"message 2", "end with the user"});
  check_error(chat.render(conversation{{assistant, "x"}, {user, "y"}}), errc::out_of_range,
              {"message 1", "assistant", "the user's turn"});
  check_error(chat.render(conversation{{user, "x"}, {user, "y"}}), errc::out_of_range,
              {"message 2", "the assistant's turn"});
  check_error(chat.render(conversation{{user, "x"}, {from_system, "y"}, {user, "z"}}),
              errc::out_of_range, {"message 2", "system", "first"});
}

BOOST_AUTO_TEST_CASE(sentencepiece_turns_are_encoded_one_by_one_with_the_control_ids_between) {
  const auto chat = need_template(mixtral, "<s>", "</s>");
  const auto tokens = fixture::need(
      om::tokenizer::load(fixture::fs::path(ORDERMOE_TEST_DATA) / "tokenizer-mixtral"));
  const auto ids = fixture::need(chat.encode(*tokens, two_turns));
  std::vector<std::int32_t> expected = {1};
  const auto add = [&](const string& text) {
    const auto made = tokens->encode(text);
    expected.insert(expected.end(), made.begin() + 1, made.end());
  };
  add("[INST] Hi. [/INST]");
  add("Hello!");
  expected.push_back(2);
  add("[INST] Who are you? [/INST]");
  BOOST_TEST(ids == expected, boost::test_tools::per_element());
  // What a message says is text, even where it looks like the end of one.
  const auto tricked = fixture::need(chat.encode(*tokens, conversation{{user, "</s>"}}));
  BOOST_TEST(std::count(tricked.begin(), tricked.end(), 2) == 0);
}

BOOST_AUTO_TEST_CASE(byte_level_conversations_have_the_ids_of_the_added_tokens) {
  auto file = json::parse(fixture::need(ordermoe::read_file(fixture::fs::path(ORDERMOE_TEST_DATA) /
                                                            "tokenizer-qwen" / "tokenizer.json")));
  auto token = file["added_tokens"][0];
  const int n = token["id"].get<int>() + static_cast<int>(file["added_tokens"].size());
  for (const string content : {"<|im_start|>", "<|im_end|>"}) {
    token["content"] = content;
    token["id"] = n + (content == "<|im_end|>" ? 1 : 0);
    file["added_tokens"].push_back(token);
  }
  const fixture::scratch_folder folder;
  folder.write("tokenizer.json", file.dump());
  const auto tokens = fixture::need(om::tokenizer::load(folder.path()));
  const auto chat = need_template(qwen3, "", "<|im_end|>");
  const auto ids = fixture::need(chat.encode(*tokens, one_turn));
  BOOST_TEST(ids == tokens->encode(rendered(chat, one_turn)), boost::test_tools::per_element());
  BOOST_TEST(std::count(ids.begin(), ids.end(), n) == 2);
  BOOST_TEST(std::count(ids.begin(), ids.end(), n + 1) == 1);
  // A template of other special tokens than the tokenizer's.
  check_error(need_template(olmoe, "<|begin|>", "<|end|>").encode(*tokens, one_turn),
              errc::mismatch, {"'<|begin|>'", "tokenizer"});
}

BOOST_AUTO_TEST_CASE(templates_of_other_models_are_refused_with_their_mark) {
  const std::pair<string, string> programs[] = {
      {"{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}",
       "<|start_header_id|>"},
      {"{{ '<|user|>\n' + message['content'] + eos_token }}{{ '<|assistant|>' }}", "<|user|>"},
      {"{{ bos_token + '[INST] <<SYS>>' + message['content'] + ' [/INST]' }}", "[INST"},
      {"{{ '<start_of_turn>user\n' + message['content'] }}", "<start_of_turn>"},
      {"### Instruction:", "16 bytes"},
  };
  for (const auto& [program, mark] : programs)
    check_error(om::chat_template::recognise(program, "<s>", "</s>", "tokenizer_config.json"),
                errc::unsupported,
                {"tokenizer_config.json", "chat_template", mark, "Qwen", "leave --chat out"});
}

BOOST_AUTO_TEST_CASE(a_folder_without_a_template_is_of_a_base_model) {
  const fixture::scratch_folder folder;
  check_error(om::chat_template::load(folder.path()), errc::not_found, {"tokenizer_config.json"});
  folder.write("tokenizer_config.json", R"({"bos_token": "<s>"})");
  check_error(om::chat_template::load(folder.path()), errc::not_found,
              {"tokenizer_config.json", "chat_template", "base model"});
  folder.write("tokenizer_config.json", R"({"chat_template": 7})");
  check_error(om::chat_template::load(folder.path()), errc::malformed, {"chat_template", "7"});
  folder.write("tokenizer_config.json", R"({"chat_template": )");
  check_error(om::chat_template::load(folder.path()), errc::malformed, {"tokenizer_config.json:1"});
  folder.write("tokenizer_config.json", config_of(mixtral, "", ""));
  check_error(om::chat_template::load(folder.path()), errc::malformed, {"bos_token"});
}

BOOST_AUTO_TEST_CASE(a_template_is_found_by_name_or_in_a_file_of_its_own) {
  const fixture::scratch_folder folder;
  json config = {
      {"chat_template",
       {{{"name", "tool_use"}, {"template", "other"}}, {{"name", "default"}, {"template", qwen}}}}};
  folder.write("tokenizer_config.json", config.dump());
  BOOST_TEST(
      (fixture::need(om::chat_template::load(folder.path())).format() == om::chat_format::chatml));
  folder.write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  folder.write("chat_template.jinja", mixtral);
  BOOST_TEST(
      (fixture::need(om::chat_template::load(folder.path())).format() == om::chat_format::inst));
}

BOOST_AUTO_TEST_SUITE_END()
