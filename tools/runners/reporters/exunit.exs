# Write the records that m3agent.tools.runners.records reads. `elixir -r` compiles this file before Mix loads the project.

defmodule M3agent.Formatter do
  use GenServer

  # Compiled into this module, so that no variable or file keeps the key.
  [report, key_file, files_file, canary] = String.split(System.fetch_env!("M3AGENT_REPORT"), "\n")
  System.delete_env("M3AGENT_REPORT")
  @report report
  @canary canary
  @key key_file |> File.read!() |> String.trim() |> Base.decode16!(case: :lower)
  @files files_file |> File.read!() |> String.split("\n", trim: true)
  File.rm!(key_file)
  @deciding [ExUnit.Assertions, ExUnit.Runner, ExUnit.EventManager, ExUnit.Case, ExUnit.Callbacks, ExUnit.Server]

  @impl true
  def init(_options) do
    output = File.open!(@report, [:write, :exclusive, :raw, :binary])
    state = %{output: output, number: 0, ran: 0, passed: 0, md5: digests()}
    {:ok, Enum.reduce(@files, state, &write(&2, ["plan", &1]))}
  end

  @impl true
  def handle_cast({:test_started, test}, state) do
    {:noreply, if(canary?(test), do: state, else: write(state, ["start" | place(test)]))}
  end

  def handle_cast({:test_finished, test}, state) do
    {outcome, text} = outcome(test)

    if canary?(test) do
      passed = if outcome == "passed", do: 1, else: 0
      {:noreply, %{state | ran: state.ran + 1, passed: state.passed + passed}}
    else
      {:noreply, write(state, ["result" | place(test)] ++ [outcome, text])}
    end
  end

  def handle_cast({:suite_finished, _times}, state) do
    state =
      for {module, digest} <- digests(), state.md5[module] != digest, reduce: state do
        state -> write(state, ["tampering", "#{inspect(module)} was replaced while the tests ran"])
      end

    state = Enum.reduce(@files, state, &write(&2, ["unit", &1]))
    state = write(state, ["canaries", 1, state.ran, state.passed])
    {:noreply, write(state, ["end"])}
  end

  def handle_cast(_event, state), do: {:noreply, state}

  defp digests, do: Map.new(@deciding, &{&1, &1.module_info(:md5)})
  defp canary?(test), do: test.tags[:file] == @canary
  defp place(test), do: [Path.relative_to_cwd(test.tags[:file] || "unknown"), [inspect(test.module), to_string(test.name)]]

  defp outcome(%{state: nil}), do: {"passed", ""}
  defp outcome(%{state: {kind, _}}) when kind in [:skipped, :excluded], do: {"skipped", ""}
  defp outcome(%{state: {:failed, failures}} = test), do: {"failed", text(failures, test)}
  defp outcome(%{state: {:invalid, %{state: {:failed, failures}}}} = test), do: {"error", text(failures, test)}
  defp outcome(_), do: {"error", ""}

  defp text(failures, _test) do
    Enum.map_join(failures, "\n", fn {kind, reason, stack} -> Exception.format(kind, reason, Enum.take(stack, 8)) end)
  end

  defp write(state, record) do
    number = state.number + 1
    body = "#{number}\t#{encode(record)}"
    code = :crypto.mac(:hmac, :sha256, @key, body) |> Base.encode16(case: :lower)
    :ok = :file.write(state.output, "#{body}\t#{code}\n")
    %{state | number: number}
  end

  defp encode(list) when is_list(list), do: "[" <> Enum.map_join(list, ",", &encode/1) <> "]"
  defp encode(number) when is_integer(number), do: Integer.to_string(number)

  defp encode(text) when is_binary(text) do
    clean = if String.valid?(text), do: text, else: inspect(text)

    escaped =
      for <<char::utf8 <- clean>>, into: "" do
        if char < 32 or char in [?", ?\\, 127],
          do: "\\u" <> String.pad_leading(Integer.to_string(char, 16), 4, "0"),
          else: <<char::utf8>>
      end

    "\"" <> escaped <> "\""
  end
end
