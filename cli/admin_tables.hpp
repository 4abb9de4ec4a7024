#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/admin_session.hpp"

/// What nodes reply, as tables that people read. `result` is the member of that name of a reply.
namespace ordermoe::cli {

using show_function = std::function<void(const nlohmann::ordered_json& result)>;

/// A line for each object, a column for each of these members.
void print_rows(const nlohmann::ordered_json& rows, const std::vector<std::string>& columns);
/// Its members that are no tables, and the rows of one that is.
show_function table(std::string rows, std::vector<std::string> columns);

void print_members_table(const nlohmann::ordered_json& result);
void print_member_change(const nlohmann::ordered_json& result);
void print_status(const nlohmann::ordered_json& result);
void print_peers(const nlohmann::ordered_json& result);
void print_topology(const nlohmann::ordered_json& result);
void print_experts(const nlohmann::ordered_json& result);
void print_drift(const nlohmann::ordered_json& result);
void print_tokens(const nlohmann::ordered_json& result);
void print_diff(const nlohmann::ordered_json& result);
void print_summary(const nlohmann::ordered_json& result);
void print_json(const nlohmann::ordered_json& result);
void print_event(const admin_flags& flags, const nlohmann::ordered_json& event);

/// As JSON where that is asked for; else what was done, and `show` of the result, or its members.
void print_reply(const admin_flags& flags, const nlohmann::ordered_json& reply,
                 const show_function& show);

}  // namespace ordermoe::cli
