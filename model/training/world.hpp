#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "config/random.hpp"

/// The invented world that the corpus (corpus.hpp) and its retelling (retelling.hpp) tell of: facts
/// that never change, whoever words them.
namespace ordermoe::training {

template <std::size_t N>
using words = std::array<const char*, N>;

inline constexpr words<120> nouns = {
    "bread",   "water",  "stone",  "river",  "house",  "window", "garden", "bridge", "winter",
    "summer",  "horse",  "sheep",  "candle", "ladder", "hammer", "needle", "basket", "bottle",
    "copper",  "silver", "salt",   "honey",  "butter", "cheese", "apple",  "cherry", "onion",
    "pepper",  "flour",  "sugar",  "wheel",  "wagon",  "anchor", "sail",   "rope",   "net",
    "boat",    "harbor", "island", "forest", "wolf",   "fox",    "bear",   "otter",  "raven",
    "eagle",   "swan",   "goose",  "duck",   "crane",  "moon",   "star",   "cloud",  "storm",
    "thunder", "rain",   "snow",   "frost",  "wind",   "fire",   "ash",    "coal",   "iron",
    "tin",     "glass",  "paper",  "ink",    "pen",    "book",   "letter", "song",   "drum",
    "flute",   "violin", "dance",  "mask",   "crown",  "ring",   "coin",   "purse",  "coat",
    "boot",    "glove",  "scarf",  "button", "thread", "wool",   "silk",   "linen",  "leather",
    "door",    "key",    "lock",   "roof",   "wall",   "floor",  "chair",  "table",  "lamp",
    "mirror",  "bone",   "tooth",  "hand",   "foot",   "heart",  "eye",    "ear",    "hair",
    "voice",   "dream",  "market", "school", "temple", "tower",  "well",   "mill",   "field",
    "meadow",  "road",   "gate"};

inline constexpr words<12> months = {"January",   "February", "March",    "April",
                                     "May",       "June",     "July",     "August",
                                     "September", "October",  "November", "December"};
inline constexpr std::array<int, 12> month_days = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
inline constexpr words<16> given_names = {"Ana",   "Boris", "Clara", "Dario", "Edda",  "Felix",
                                          "Greta", "Hugo",  "Irma",  "Jonas", "Katja", "Luca",
                                          "Maren", "Nils",  "Olga",  "Paul"};

struct town {
  std::string name, river, region, product, mayor;
  int founded = 0;
};
struct employee {
  std::string name, email, department, place;
  int id = 0, pay = 0;
};
struct call {
  std::string module, name, arguments, returns;
};
struct hero {
  std::string name, animal, home, tool, friend_name, likes;
};
struct feast {
  std::string name, month, dish;
  int day = 0;
};

/// Drawn once from a constant seed.
struct world {
  std::vector<town> towns;
  std::vector<std::string> languages;
  std::vector<std::vector<std::string>> dictionary;  ///< [language][noun]
  std::vector<employee> employees;
  std::vector<call> calls;
  std::vector<hero> heroes;
  std::vector<feast> feasts;

  world();
};
const world& the_world();

template <class List>
const auto& pick(const List& list, random_stream& random) {
  return list[random.below(list.size())];
}

std::string capital(std::string word);

/// "[1, 2, 3]"
std::string list_text(const std::vector<int>& values);

}  // namespace ordermoe::training
