#pragma once

#include <chrono>

/// What systemd, or another service manager with its protocol (sd_notify(3)), is told of this process.
namespace ordermoe::cli {

/// Tells it, where one asked for it by NOTIFY_SOCKET; else nothing happens.
void notify(const char* text);

/// How often it wants to hear that all is well: half of what it allows; 0: never.
std::chrono::milliseconds watchdog_period();

}  // namespace ordermoe::cli
