#include "model/model_config.hpp"
